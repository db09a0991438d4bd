"""Operations in autograd's graph, in a world of one rank."""

from __future__ import annotations

import functools
import gc
import re
import weakref
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import bluecomm as bf
from bluecomm.runtime import current_process

STEMS = {
    "allreduce": bf.allreduce,
    "allgather": bf.allgather,
    "alltoall": bf.alltoall,
    "broadcast": functools.partial(bf.broadcast, root_rank=0),
    "reducescatter": bf.reducescatter,
    "neighbor_allreduce": bf.neighbor_allreduce,
    "neighbor_allgather": bf.neighbor_allgather,
    "hierarchical_neighbor_allreduce": bf.hierarchical_neighbor_allreduce,
    "grouped_allreduce": lambda x: bf.grouped_allreduce([x])[0],
}
STARTS = {
    f"{stem}_nonblocking": getattr(bf, f"{stem}_nonblocking")
    for stem in STEMS
    if stem not in ("broadcast", "grouped_allreduce")
}
IN_PLACE = {
    "allreduce_": bf.allreduce_,
    "allreduce_nonblocking_": bf.allreduce_nonblocking_,
    "broadcast_": functools.partial(bf.broadcast_, root_rank=0),
    "broadcast_nonblocking_": functools.partial(bf.broadcast_nonblocking_, root_rank=0),
    "neighbor_allreduce_": bf.neighbor_allreduce_,
    "neighbor_allreduce_nonblocking_": bf.neighbor_allreduce_nonblocking_,
}


@pytest.fixture(autouse=True, scope="module")
def _world():
    bf.init()
    yield
    current_process().leave()


def waited(start, x):
    return start(x).wait()


def kind_of(name):
    stem = name.removesuffix("_").removesuffix("_nonblocking")
    return stem.removeprefix("grouped_")


CALLS = {
    **STEMS,
    **{name: functools.partial(waited, start) for name, start in STARTS.items()},
}


def leaf():
    return torch.tensor([[0.0, 1.0], [2.0, 3.0]], requires_grad=True)


@pytest.mark.parametrize("name", CALLS)
def test_results_carry_gradients_only_if_inputs_do(name):
    call, x = CALLS[name], leaf()
    y = call(x)
    assert y.requires_grad
    (y.sum() + x.sum()).backward()
    rows = y.numel() / x.numel()  # neighbor_allgather has no rows in a world of one
    assert torch.equal(x.grad, torch.full_like(x, 1 + rows))
    with torch.no_grad():
        assert not call(x).requires_grad
    assert not call(x.detach()).requires_grad


@pytest.mark.parametrize("name", CALLS)
def test_plain_tensors_do_not_reach_autograd(name):
    with mock.patch("bluecomm.ops.start.is_tracked", side_effect=AssertionError):
        CALLS[name](torch.ones(2, 2))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", CALLS)
def test_forward_mode_is_refused(name):
    with torch.autograd.forward_ad.dual_level():
        CALLS[name](torch.ones(2, 2))
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2, 2), torch.ones(2, 2))
        with pytest.raises(ValueError, match=f"^{kind_of(name)}: .* has a tangent"):
            CALLS[name](dual)


TRANSFORMS = {
    "grad": torch.func.grad,
    "vmap": torch.func.vmap,
    "jacrev": torch.func.jacrev,
    "functionalize": torch.func.functionalize,
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", [*CALLS, *IN_PLACE])
def test_transforms_are_refused(name, transform):
    call = IN_PLACE.get(name) or CALLS[name]
    transformed = TRANSFORMS[transform](lambda x: call(x.clone()))
    with pytest.raises(
        ValueError, match=f"^{kind_of(name)}: .* a transform, .* outside of vmap"
    ):
        transformed(torch.ones(2, 2, 2))


def test_batched_backward_passes_are_refused():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"no memory, .* without is_grads_batched"):
        torch.autograd.grad(bf.allreduce(x), x, torch.eye(2), is_grads_batched=True)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
def test_tensors_without_memory_are_refused():
    with FakeTensorMode():
        fake = torch.ones(2)
    with pytest.raises(ValueError, match=r"^the FakeTensor has .* no memory"):
        bf.allreduce(fake)


@pytest.mark.parametrize("name", [*CALLS, *IN_PLACE])
def test_views_with_the_other_sign_are_read_as_torch_shows_them(name):
    view = torch._neg_view(torch.tensor([[1.0, -2.0], [3.0, 4.0]]))
    assert view.is_contiguous()
    call = IN_PLACE.get(name) or CALLS[name]
    result = call(view)
    if name in IN_PLACE and "nonblocking" in name:
        result = bf.wait(result)
    if not name.startswith("neighbor_allgather"):  # has no rows in a world of one
        assert result.tolist() == [[-1.0, 2.0], [-3.0, -4.0]]
    assert view.tolist() == [[-1.0, 2.0], [-3.0, -4.0]]


def test_the_mode_counts_when_an_operation_is_started():
    x = leaf()
    handle = bf.allreduce_nonblocking(x)
    with torch.no_grad():
        late = bf.allreduce_nonblocking(x)
        assert bf.synchronize(handle).requires_grad
    assert not bf.synchronize(late).requires_grad


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_forms_refuse_leaves(name):
    call, x = IN_PLACE[name], leaf()
    stem = name.removesuffix("_").removesuffix("_nonblocking")
    for tensor, what in ((x, "leaf"), (x[0], "view of a leaf")):
        text = f"^{stem}_: a {what} tensor that requires grad .*pass tensor.data"
        with pytest.raises(RuntimeError, match=text):
            call(tensor)
    values, version = x.tolist(), x._version
    with torch.no_grad():
        bf.wait(call(x)) if "nonblocking" in name else call(x)
    assert x.is_leaf
    assert x.tolist() == values
    assert x._version == version + 1
    bf.wait(call(x.data)) if "nonblocking" in name else call(x.data)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_forms_are_recorded_on_other_tensors(name):
    call, x = IN_PLACE[name], leaf()
    y = x * 3
    square = y * y
    result = bf.wait(call(y)) if "nonblocking" in name else call(y)
    assert result is y
    (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert torch.equal(gradient, torch.full_like(x, 3.0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()
    row = (x * 3)[1]
    bf.wait(call(row)) if "nonblocking" in name else call(row)
    assert row.requires_grad


@pytest.mark.parametrize(
    "call",
    [
        lambda x: bf.allreduce(x, op=bf.Adasum),
        lambda x: bf.reducescatter(x, op=bf.Max),
        lambda x: bf.reducescatter(x, op=bf.Product),
    ],
)
def test_reductions_without_a_gradient_refuse(call):
    text = r"has no gradient; pass tensor\.detach\(\), or call it under torch\.no_grad"
    with pytest.raises(ValueError, match=text):
        call(leaf())
    assert not call(leaf().detach()).requires_grad


def test_the_gradient_of_an_extreme_is_shared_by_equals():
    x = leaf()
    bf.allreduce(x, op=bf.Max, postscale_factor=2.0).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2.0))


def test_gradients_are_compressed_as_the_values():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = bf.allreduce(x, compression=bf.Compression.fp16)
    fine = 1 + 2.0**-20
    y.backward(torch.tensor([fine, 1.0]))
    assert y.dtype == x.grad.dtype == torch.float32
    assert x.grad.tolist() == [1.0, 1.0]


def test_linear_operations_do_not_keep_their_input():
    x = leaf()
    middle = x + 1
    gone = weakref.ref(middle)
    y = bf.allreduce(middle)
    del middle
    gc.collect()
    assert gone() is None
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(2, 2))


def test_gradients_of_any_layout():
    x = torch.ones(3, 2, requires_grad=True)
    y = bf.allreduce(x.t())
    y.backward(torch.arange(6.0).reshape(3, 2).t())
    assert x.grad.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_several_calls_of_one_name_have_names_of_their_own():
    x, world = leaf(), current_process().communicator.world
    with mock.patch.object(world, "start", side_effect=world.start) as start:
        ys = [bf.allreduce(x, name="same") for _ in range(3)]
        unnamed = bf.broadcast(x, 0)
        sum(y.sum() for y in [*ys, unnamed]).backward()
    *_, last, third, second, first = [call.args[0].name for call in start.mock_calls]
    assert re.fullmatch(r"broadcast\.noname\.\d+\.backward", last)
    assert first == "same.backward.0"
    assert second == "same.backward.1"
    assert third == "same.backward.2"
