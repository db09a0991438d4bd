"""How results are written to tensors of a device whose memory is that of the host."""

import contextlib
import ctypes

import pytest
import torch

from bluecomm.device.staging import HostCopy, Staging


class HostStaging(Staging):
    """Copies bytes, whatever the tensor makes of them."""

    name = "cuda:3"

    def current_stream(self):
        return 0

    def to_host(self, tensor, *, into=None, after=()):
        return HostCopy(tensor.clone(), None)

    def empty_on_host(self, shape, dtype):
        return torch.empty(tuple(shape), dtype=dtype)

    empty = empty_on_host

    def point(self):
        return None

    def follow(self, point):
        pass

    def follow_streams(self, streams):
        pass

    def keep_for_stream(self, memory):
        pass

    def new_future(self):
        return torch.futures.Future()

    def stream_context(self):
        return contextlib.nullcontext()

    def fill(self, tensor, values):
        ctypes.memmove(tensor.data_ptr(), values.data_ptr(), values.nbytes)


VALUES = torch.tensor([[1 + 2j, 3 - 1j], [0.5j, -2 + 0j]])


@pytest.mark.parametrize(
    "view",
    [lambda x: x, torch.t, torch.conj, torch._neg_view, lambda x: x.conj().t()],
    ids=["plain", "transposed", "conjugated", "negative", "conjugated, transposed"],
)
def test_a_view_shows_the_values_that_are_written_to_it(view):
    tensor = view(torch.zeros_like(VALUES))
    version = tensor._version
    assert HostStaging().write(tensor, VALUES) is tensor
    assert torch.equal(tensor, VALUES)
    assert tensor._version > version
