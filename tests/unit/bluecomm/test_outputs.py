"""Memory that the caller gives for a result: what is refused, in a world of one."""

from __future__ import annotations

import pytest
import torch

import bluecomm as bf
from bluecomm import errors
from bluecomm.runtime import current_process


@pytest.fixture(autouse=True, scope="module")
def _world():
    bf.init()
    yield
    current_process().leave()


X = torch.arange(6.0).view(3, 2)


@pytest.mark.parametrize(
    ("out", "error", "text"),
    [
        (7, TypeError, "out must be a torch.Tensor, got int"),
        (torch.empty(3, 2, dtype=torch.int32), ValueError, "type torch.float32 and"),
        (torch.empty(3), ValueError, r"and shape \((rows|3), 2\), got .* and \(3,\)"),
        (torch.empty(3, 1), ValueError, r"and \(3, 1\)"),
        (torch.empty(2, 3).t(), ValueError, r"must be contiguous, got strides \(1, 3"),
        (torch.empty(3, 2, device="meta"), ValueError, "CPU tensor.* got one on meta"),
        (torch.eye(3, 2).to_sparse(), ValueError, "with layout torch.sparse_coo"),
        (torch.empty(3, 2, requires_grad=True), ValueError, "no gradient passes"),
    ],
)
@pytest.mark.parametrize("operation", ["allgather", "alltoall", "reducescatter"])
def test_unsuitable_memory_is_refused(operation, out, error, text):
    if isinstance(out, int) and operation != "reducescatter":
        error, text = ValueError, "one tensor, or one for each of 1 ranks, got int"
    with pytest.raises(error, match=f"{operation}: .*{text}"):
        getattr(bf, operation)(X, out=out)


@pytest.mark.parametrize("operation", ["allgather", "alltoall", "reducescatter"])
def test_no_gradient_passes_through_memory_of_the_caller(operation):
    x = X.clone().requires_grad_()
    call = getattr(bf, operation)
    with pytest.raises(ValueError, match="omit out, or call the operation under"):
        call(x, out=torch.empty(3, 2))
    with torch.no_grad():
        assert torch.equal(call(x, out=torch.empty(3, 2)), X)


@pytest.mark.parametrize("view", [torch._neg_view, torch.conj])
@pytest.mark.parametrize("operation", ["allgather", "alltoall", "reducescatter"])
def test_views_that_hold_other_values_are_refused(operation, view):
    x = X.to(torch.complex64)
    with pytest.raises(ValueError, match="a dense CPU tensor that owns its values"):
        getattr(bf, operation)(x, out=view(torch.empty_like(x)))


def test_memory_of_another_length_is_refused():
    text = "expected an output of 24 bytes"
    for out in (torch.empty(4, 2), [torch.empty(2, 2)]):
        with pytest.raises(errors.MismatchError, match=text):
            bf.allgather(X, out=out)
    with pytest.raises(ValueError, match=r"out must have .* shape \(3, 2\)"):
        bf.reducescatter(X, out=torch.empty(4, 2))
    with pytest.raises(ValueError, match="one for each of 1 ranks, got 2"):
        bf.allgather(X, out=[torch.empty(3, 2), torch.empty(3, 2)])


def test_memory_that_overlaps_the_input_is_refused():
    whole = torch.arange(8.0).view(4, 2)
    for operation in (bf.allgather, bf.alltoall):
        with pytest.raises(errors.MismatchError, match="not overlap the input"):
            operation(whole[:3], out=whole[1:])
    with pytest.raises(ValueError, match="must not overlap it"):
        bf.reducescatter(whole[:3], out=whole[1:])


@pytest.mark.parametrize("operation", ["allgather", "alltoall", "reducescatter"])
def test_the_result_is_the_given_tensor_and_autograd_sees_the_change(operation):
    out = torch.zeros(3, 2)
    version = out._version
    result = getattr(bf, f"{operation}_nonblocking")(X, out=out).wait()
    assert result is out
    assert torch.equal(out, X)
    assert out._version > version
    assert torch.equal(getattr(bf, operation)(torch.ones(0, 2), out=out[:0]), out[:0])
