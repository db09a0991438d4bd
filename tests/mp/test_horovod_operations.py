"""Operations and optimizer of ``bluecomm.compat.horovod``, with Horovod's arguments."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import bluecomm as bf
import bluecomm.compat.horovod as hvd
from bluecomm.errors import MismatchError
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
RANKS = 3


def pass_arguments_by_position() -> dict[str, list[float]]:
    me = hvd.rank()
    both = hvd.add_process_set([0, 2])
    x = torch.arange(6.0) + me
    found = {
        "allreduce": hvd.allreduce(x, None, "a"),
        "root allreduce": bf.allreduce(x, None, "b"),
        "in place": hvd.allreduce_(x.clone(), None, "c", hvd.Sum),
        "compression": hvd.allreduce(x, False, "d", hvd.Compression.fp16),
        "reducescatter": hvd.reducescatter(x, "e", hvd.Compression.none, hvd.Sum),
        "broadcast": hvd.broadcast(x, 1, "f"),
    }
    if both.included():
        found["allgather"] = hvd.allgather(x[:1], "g", both)
        found["broadcast in a set"] = hvd.broadcast(x, 2, "h", both)
        found["alltoall"] = hvd.alltoall(x[:2], None, "i", both)
        hvd.barrier(both)
        assert hvd.size() == RANKS
        assert both.size() == 2
        assert both.rank() == me // 2
    hvd.remove_process_set(both)
    return {name: value.tolist() for name, value in found.items()}


def test_arguments_by_position() -> None:
    results = run_ranks(RANKS, pass_arguments_by_position)
    mean = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    total = [3 * value for value in mean]
    for rank, found in enumerate(results):
        assert found["allreduce"] == found["root allreduce"] == mean
        assert found["in place"] == found["compression"] == total
        assert found["reducescatter"] == total[2 * rank : 2 * rank + 2]
        assert found["broadcast"] == [value + 1 for value in range(6)]
        if rank != 1:
            assert found["allgather"] == [0.0, 2.0]
            assert found["broadcast in a set"] == [value + 2 for value in range(6)]
            assert found["alltoall"] == [0.0 + rank // 2, 2.0 + rank // 2]


def reduce_integers() -> dict[str, list[int]]:
    x = torch.tensor([-7, -1, 5], dtype=torch.int64) + hvd.rank()
    y = x.clone()
    hvd.synchronize(hvd.allreduce_async_(y, op=hvd.Average))
    found = {
        "average": hvd.allreduce(x),
        "in place": y,
        "prescale": hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5),
        "postscale": hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.5),
        "both": hvd.allreduce(x, prescale_factor=2.0, postscale_factor=0.5),
        "overflow": hvd.allreduce(torch.tensor([100, -100], dtype=torch.int8)),
        "largest": hvd.allreduce(x, op=hvd.Max),
        "rows": hvd.reducescatter(x, op=hvd.Average),
        "group": hvd.grouped_allreduce([x, x])[1],
    }
    return {name: value.tolist() for name, value in found.items()}


def test_integers_are_truncated_as_in_horovod() -> None:
    x = torch.tensor([-7, -1, 5])
    inputs = [x + rank for rank in range(RANKS)]
    total = sum(inputs)
    average = total.div(RANKS, rounding_mode="trunc").tolist()
    halves = sum((value * 0.5).to(torch.int64) for value in inputs)
    for rank, found in enumerate(run_ranks(RANKS, reduce_integers)):
        assert found["average"] == found["in place"] == found["group"] == average
        assert found["prescale"] == halves.tolist()
        assert found["postscale"] == (total * 0.5).to(torch.int64).tolist()
        assert found["both"] == average
        wrapped = torch.tensor([100, -100], dtype=torch.int8).repeat(RANKS, 1).sum(0)
        wrapped = wrapped.to(torch.int8).div(RANKS, rounding_mode="trunc")
        assert found["overflow"] == wrapped.tolist() != [100, -100]
        assert found["largest"] == inputs[-1].tolist()
        assert found["rows"] == average[rank : rank + 1]


def reduce_with_rounded_factors() -> list[torch.Tensor]:
    x = torch.arange(100.0) + hvd.rank()
    return [
        hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.1),
        hvd.grouped_allreduce_([x.clone()], op=hvd.Sum, postscale_factor=0.1)[0],
        hvd.allgather(hvd.reducescatter(x, op=hvd.Sum, postscale_factor=0.1)),
    ]


def test_factors_are_rounded_to_float32_as_in_horovod() -> None:
    expected = (3 * torch.arange(100.0) + 3) * torch.tensor(0.1)
    for found in run_ranks(RANKS, reduce_with_rounded_factors):
        for result in found:
            assert torch.equal(result, expected)


def reduce_groups() -> list[list[list[float]]]:
    xs = [torch.arange(float(n)) + hvd.rank() for n in (3, 6)]
    ys = [x.clone() for x in xs]
    assert bf.grouped_allreduce_(ys, False, "group")[0] is ys[0]
    scaled = hvd.reducescatter(
        xs[0], op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25
    )
    results = [
        ys,
        hvd.synchronize(hvd.grouped_allreduce_async_(xs, True)),
        hvd.grouped_allgather([x[:1] for x in xs], "gather"),
        bf.grouped_reducescatter(xs, op=bf.Sum, name="rows"),
        hvd.grouped_reducescatter(ys, "averages"),
        [scaled],
    ]
    return [[x.tolist() for x in group] for group in results]


def test_groups() -> None:
    def base(n: int) -> list[float]:
        return [float(i) for i in range(n)]

    mean = [[1 + v for v in base(n)] for n in (3, 6)]
    total = [[3 * v for v in values] for values in mean]
    for rank, found in enumerate(run_ranks(RANKS, reduce_groups)):
        first, second = slice(rank, rank + 1), slice(2 * rank, 2 * rank + 2)
        assert found[0] == total
        assert found[1] == mean
        # The in-place average has written the means to xs, the sums to ys.
        assert found[2] == [[1.0] * RANKS] * 2
        assert found[3] == [total[0][first], total[1][second]]
        assert found[4] == [total[0][first], total[1][second]]
        # scaled before the in-place average: 0.25 * sum_i 2 x_i
        assert found[5] == [[0.5 * total[0][rank]]]


def use_process_sets() -> list[str]:
    texts = []
    own = hvd.ProcessSet([1, 0])
    assert own.ranks == [0, 1]
    assert own.size() is None
    for wrong in (
        lambda: hvd.allreduce(torch.ones(1), process_set=own),
        lambda: hvd.add_process_set(hvd.add_process_set(own).ranks),
        lambda: hvd.ProcessSet(["a"]),
        lambda: hvd.init([0]),
    ):
        with pytest.raises(ValueError, match=r"[ra]nk") as caught:
            wrong()
        texts.append(str(caught.value))
    hvd.init(list(range(RANKS)), process_sets=[hvd.ProcessSet([2])])
    everybody = hvd.global_process_set
    assert everybody.ranks == [0, 1, 2]
    assert (everybody.size(), everybody.rank()) == (RANKS, hvd.rank())
    assert not hvd.remove_process_set(everybody)
    assert hvd.remove_process_set(own)
    assert not hvd.remove_process_set(own)
    assert own.process_set_id is None
    assert hvd.add_process_set([0, 1]).process_set_id == 3
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=everybody)) == 3
    return texts


def test_process_sets() -> None:
    for texts in run_ranks(RANKS, use_process_sets):
        assert "pass it to add_process_set" in texts[0]
        assert "of the ranks [0, 1] is added already" in texts[1]
        assert "expected ranks, which are integers, got ['a']" in texts[2]
        assert "must list all ranks, 0 .. 2, got [0]" in texts[3]


def train_with_predivision(named_second: bool) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1, bias=False)
    parameters = model.named_parameters()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        parameters if named_second else model,
        gradient_predivide_factor=4.0,
        num_groups=1,
    )
    before = model.weight.detach().clone()
    model(torch.full((1, 3), 1.0 + hvd.rank())).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"needs op=bluecomm\.Average"):
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0),
            op=hvd.Sum,
            gradient_predivide_factor=2.0,
        )
    return (before - model.weight.detach()).flatten().tolist()


@pytest.mark.parametrize("named_second", [True, False])
def test_optimizer_with_horovods_arguments(named_second: bool) -> None:
    for step in run_ranks(RANKS, train_with_predivision, named_second):
        assert step == pytest.approx([2.0] * 3, abs=1e-6)


def gradients() -> dict[str, list[float]]:
    def gradient(operation: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
        x = torch.ones(3, requires_grad=True)
        operation(x).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    return {
        "allreduce": gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)),
        "average": gradient(hvd.allreduce),
        "group": gradient(lambda x: hvd.grouped_allreduce([x], average=False)[0]),
        "allgather": gradient(hvd.allgather),
        "broadcast": gradient(lambda x: hvd.broadcast(x, 1)),
        "rows": gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum)),
        "mean rows": gradient(hvd.reducescatter),
        "alltoall": gradient(hvd.alltoall),
    }


def test_gradients_have_horovods_factors() -> None:
    for rank, found in enumerate(run_ranks(RANKS, gradients)):
        ones, threes = [1.0] * 3, [3.0] * 3
        assert found["allreduce"] == found["group"] == threes
        assert found["average"] == found["allgather"] == found["alltoall"] == ones
        # The joint function of all ranks has 3, 1 and 1 / 3 instead.
        assert found["broadcast"] == (ones if rank == 1 else [0.0] * 3)
        assert found["rows"] == threes
        assert found["mean rows"] == ones


def use_a_name_in_flight() -> str:
    if hvd.rank() == 0:
        first = hvd.allreduce_async(torch.ones(2), name="busy")
        with pytest.raises(ValueError, match="in flight") as caught:
            hvd.allreduce_async(torch.ones(2), name="busy")
        other = hvd.allgather_async(torch.ones(2), name="busy")
        hvd.barrier()
        hvd.synchronize(first)
        hvd.synchronize(other)
        text = str(caught.value)
    else:
        hvd.barrier()
        first = hvd.allreduce(torch.full((2,), 4.0), name="busy")
        # Rank 0 has refused its second call, not its first.
        assert first.tolist() == [(4 * hvd.size() - 3) / hvd.size()] * 2
        with pytest.raises(MismatchError, match=r"rank 0 .* refused its call") as told:
            hvd.allreduce(torch.ones(2), name="busy")
        assert "is in flight" in str(told.value)
        hvd.allgather(torch.ones(2), name="busy")
        text = ""
    hvd.allreduce(torch.ones(2), name="busy")
    return text


def test_a_name_in_flight_is_refused() -> None:
    assert run_ranks(RANKS, use_a_name_in_flight)[0] == (
        "allreduce 'busy' on rank 0: an operation of this name is in flight; wait for "
        "it first, or use another name"
    )


def use_the_optimizer_as_in_horovod() -> list[float]:
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    names = optimizer._parameter_names
    assert names == {model.weight: "weight", model.bias: "bias"}
    hvd.broadcast_optimizer_state(optimizer, 0, model)
    assert float(model.weight.grad.abs().sum()) == 0.0

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.synchronize()

    step()
    with pytest.warns(UserWarning, match=r"without optimizer\.skip_synchronize\(\)"):
        optimizer.step()
    step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.step()
    with pytest.raises(NotImplementedError, match="is for allreduce only"):
        hvd.reducescatter(torch.ones(3), op=hvd.Adasum)
    return model.weight.detach().flatten().tolist()


def test_the_optimizer_does_what_scripts_expect() -> None:
    run_ranks(RANKS, use_the_optimizer_as_in_horovod)


def train_embedding(as_dense: bool) -> torch.Tensor:
    torch.manual_seed(0)
    model = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(list(model.parameters()), lr=0.1),
        sparse_as_dense=as_dense,
    )
    model(torch.tensor([hvd.rank()])).sum().backward()
    optimizer.step()
    return model.weight.detach()


def test_sparse_gradients_sent_as_dense_ones_suit_sparse_adam() -> None:
    sparse, dense = (run_ranks(RANKS, train_embedding, way) for way in (False, True))
    for one in (*sparse, *dense):
        assert torch.equal(one, sparse[0])


def join_as_in_horovod() -> int:
    if hvd.rank() != 2:
        assert int(hvd.allreduce(torch.tensor([3]), name="x")) == 2
    return hvd.join(hvd.local_rank())


def test_join_takes_a_device() -> None:
    last = run_ranks(RANKS, join_as_in_horovod)
    assert last in ([0] * RANKS, [1] * RANKS)
