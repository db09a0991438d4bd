"""Moving tensors that exist already into shared memory."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
import torch

import bluecomm as bf
from bluecomm.ops import share_memory
from bluecomm.runtime import current_process

needs_exchange = pytest.mark.skipif(
    share_memory._exchange is None and not os.environ.get("CI"),
    reason="this torch cannot exchange the memory of tensors",
)


def is_shared(tensor: torch.Tensor) -> bool:
    return current_process().memory.contains(tensor.data_ptr(), tensor.nbytes)


@needs_exchange
def test_the_tensor_and_its_views_move_with_their_values():
    tensor = torch.arange(100_000.0)
    view, parameter = tensor[7:9], torch.nn.Parameter(tensor.view(100, 1000))
    assert bf.share_memory_(view) is view
    for one in (tensor, view, parameter):
        assert is_shared(one)
    assert torch.equal(tensor, torch.arange(100_000.0))
    tensor[8] = -1
    assert view.tolist() == [7, -1]
    assert parameter[0, 8] == -1
    address = tensor.data_ptr()
    bf.share_memory_(parameter)
    assert tensor.data_ptr() == address


@needs_exchange
def test_any_type_moves_and_memory_is_freed_with_the_last_view():
    tensor = torch.full((1 << 18,), 3 + 4j)
    view = bf.share_memory_(tensor)[1:]
    address = tensor.data_ptr()
    del tensor
    assert view.abs().eq(5).all()
    del view
    gc.collect()
    again = bf.share_memory_(torch.ones(1 << 18, dtype=torch.complex64))
    assert again.data_ptr() == address  # the free block of the same size is used again


def test_tensors_without_memory_and_shared_ones_stay():
    for tensor in (torch.empty(0), bf.shared_empty(10)):
        address = tensor.data_ptr()
        assert bf.share_memory_(tensor) is tensor
        assert tensor.data_ptr() == address


def exported():
    tensor = torch.ones(3)
    array = tensor.numpy()
    assert array.base is not None
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.from_numpy(np.ones(3)),
        exported,
        lambda: torch.ones(3).share_memory_(),
        lambda: torch.frombuffer(bytearray(8), dtype=torch.uint8),
    ],
    ids=["from_numpy", "numpy", "torch_shared", "frombuffer"],
)
def test_memory_of_others_is_not_moved(make):
    tensor = make()
    address = tensor.data_ptr()
    with pytest.raises(ValueError, match="belongs to a NumPy array, another process"):
        bf.share_memory_(tensor)
    assert tensor.data_ptr() == address


@pytest.mark.parametrize(
    ("tensor", "error", "text"),
    [
        ([1.0], TypeError, "expected a torch.Tensor, got list"),
        (torch.empty(3, device="meta"), ValueError, "got one on meta"),
        (torch.eye(3).to_sparse(), ValueError, "with layout torch.sparse_coo"),
    ],
)
def test_other_tensors_are_refused(tensor, error, text):
    with pytest.raises(error, match=f"share_memory_: .*{text}"):
        bf.share_memory_(tensor)


def test_an_old_torch_is_named(monkeypatch):
    monkeypatch.setattr(share_memory, "_exchange", None)
    with pytest.raises(NotImplementedError, match=r"torch 2\..* cannot exchange"):
        bf.share_memory_(torch.ones(3))
