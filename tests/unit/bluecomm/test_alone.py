"""`allreduce_` in a world of one, which is counted and otherwise does nothing."""

from __future__ import annotations

import re
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm import errors
from bluecomm.runtime import current_communicator, current_process


@pytest.fixture(autouse=True)
def _world():
    bf.init()
    yield
    current_process().leave()


class _Tensor(torch.Tensor):
    pass


def _calls() -> int:
    counters = bf.stats().operations.get("allreduce")
    return 0 if counters is None else counters.calls


@pytest.mark.parametrize(
    "op", [None, bf.Sum, bf.Average, bf.Min, bf.Product, bf.Adasum]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda values: values,
        lambda values: values.t(),
        lambda values: values[:, :0],
        lambda values: values.as_subclass(_Tensor),
        lambda values: values.to(torch.complex64),
        lambda values: values.to(torch.complex64).imag,
        lambda values: values.to(torch.complex64).conj().imag,
    ],
)
def test_a_call_returns_its_tensor_and_is_counted(make, op):
    tensor = make(torch.arange(6.0).view(2, 3))
    if tensor.is_complex() and op not in (None, bf.Sum, bf.Average):
        with pytest.raises(ValueError, match="complex numbers have only"):
            bf.allreduce_(tensor, op=op)
        return
    values, version = tensor.clone(), tensor._version
    for calls in (1, 2):
        assert bf.allreduce_(tensor, op=op) is tensor
        assert torch.equal(tensor, values)
        assert tensor._version > version
        assert _calls() == calls
    assert bf.allreduce_(tensor, op=op, name="x", timeout_s=1.0) is tensor
    assert _calls() == 3


def test_only_a_call_that_changes_nothing_is_not_started():
    tensor = torch.ones(2)
    with mock.patch("bluecomm.ops.allreduce.start", side_effect=AssertionError):
        assert bf.allreduce_(tensor) is tensor
        for options in ({"postscale_factor": 2.0}, {"timeout_s": 1.0}):
            with pytest.raises(AssertionError):
                bf.allreduce_(tensor, **options)
        for other in (tensor.as_subclass(_Tensor), tensor[:0]):
            with pytest.raises(AssertionError):
                bf.allreduce_(other)


def test_calls_are_counted_anew_after_a_reset():
    tensor = torch.ones(2)
    for calls in (2, 1):
        for _ in range(calls):
            bf.allreduce_(tensor)
        assert _calls() == _calls() == calls
        bf.reset_stats()
        assert _calls() == 0


def test_a_recorded_call_is_started(tmp_path, monkeypatch):
    current_process().leave()
    monkeypatch.setenv("BLUECOMM_TIMELINE", str(tmp_path / "timeline"))
    bf.init()
    assert not current_communicator().is_alone
    bf.allreduce_(torch.ones(2))
    assert _calls() == 1


def test_calls_without_a_name_are_numbered():
    tensor = torch.ones(2)
    for _ in range(3):
        bf.allreduce_(tensor)
    assert current_communicator().name_for("allreduce", None).endswith(".3")


def test_factors_are_applied():
    tensor = torch.ones(2)
    bf.allreduce_(tensor, op=bf.Sum, prescale_factor=3.0)
    assert tensor.tolist() == [3.0, 3.0]
    bf.allreduce_(tensor, op=bf.Sum, postscale_factor=0.5)
    assert tensor.tolist() == [1.5, 1.5]


def test_a_set_of_one_rank_is_alone_until_it_is_freed():
    process_set = bf.ProcessSet([0])
    tensor = torch.ones(2)
    assert bf.allreduce_(tensor, process_set=process_set) is tensor
    process_set.free()
    with pytest.raises(ValueError, match="has been freed"):
        bf.allreduce_(tensor, process_set=process_set)


@pytest.mark.parametrize(
    ("tensor", "options", "error", "text"),
    [
        (7, {}, TypeError, "expected a torch.Tensor, got int"),
        (torch.eye(2).to_sparse(), {}, ValueError, "layout torch.sparse_coo"),
        (torch.empty(2, device="meta"), {}, ValueError, "got one on meta"),
        (
            torch.ones(2).to(torch.float8_e5m2),
            {},
            TypeError,
            "float8_e5m2 are not supp",
        ),
        (torch.ones(2, dtype=torch.int32), {}, ValueError, "cannot average"),
        (torch.ones(2, requires_grad=True), {}, RuntimeError, "a leaf tensor"),
        (torch.ones(2), {"average": True, "op": bf.Sum}, ValueError, "not both"),
        (torch.ones(2), {"name": 3}, TypeError, "name must be a string"),
        (torch.ones(2), {"timeout_s": 0}, ValueError, "must be above 0"),
        (torch.ones(2), {"is_hierarchical_local": 1}, TypeError, "True or False"),
    ],
)
def test_a_wrong_call_is_refused(tensor, options, error, text):
    with pytest.raises(error, match=text):
        bf.allreduce_(tensor, **options)


def test_a_tensor_without_memory_is_refused():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="has a shape but no memory"):
        bf.allreduce_(tensor)


def test_a_transform_is_refused():
    with pytest.raises(ValueError, match="belongs to a transform"):
        torch.vmap(bf.allreduce_)(torch.ones(2, 2))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_a_tangent_is_refused():
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        dual = forward.make_dual(torch.ones(2), torch.ones(2))
        with pytest.raises(ValueError, match="has a tangent"):
            bf.allreduce_(dual)


def test_a_call_needs_a_running_world():
    tensor, comm = torch.ones(2), current_communicator()
    bf.suspend()
    with pytest.raises(errors.SuspendedError, match="is suspended"):
        bf.allreduce_(tensor)
    bf.resume()
    assert bf.allreduce_(tensor) is tensor
    bf.shutdown()
    with pytest.raises(errors.ShutdownError, match=re.escape("bluecomm.init()")):
        bf.allreduce_(tensor, process_set=comm)
    with pytest.raises(errors.ShutdownError):
        bf.allreduce_(tensor)
