"""``join``: ranks without data take part in the operations of the others."""

from __future__ import annotations

import operator
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.runtime import Communicator
from bluecomm.runtime.handle import DoneHandle
from tests.support.deadlines import hear, say, wait_until
from tests.support.late_failures import fail_late
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
_MODULES = ("coded_exchange", "join")


def sums_of_the_others(dtype: torch.dtype) -> list[float]:
    """Return the last elements of sums of three sizes, whose algorithms differ."""
    handles = [
        bf.allreduce_nonblocking(
            torch.full((count,), 1 + bf.rank(), dtype=dtype),
            name=f"x{count}",
            op=bf.Sum,
        )
        for count in (1, 1000, 300_000)
    ]
    return [float(bf.wait(handle)[-1]) for handle in handles]


def join_in_turn() -> list[list[float]]:
    found = []
    for first in range(bf.size()):
        if bf.rank() != first:
            found.append(sums_of_the_others(torch.float32))
            assert found[-1] == sums_of_the_others(torch.int64)
            bf.barrier()
        assert bf.join() != first
        # Operations with and without names match again, on all ranks.
        everybody = bf.allgather(torch.tensor([bf.rank()]))
        assert everybody.tolist() == list(range(bf.size()))
        assert float(bf.allreduce(torch.tensor(2.0), name="x1")) == 2.0
    return found


@pytest.mark.parametrize(
    ("world_size", "transport"), [(2, "shm"), (3, "tcp"), (5, "shm"), (6, "auto")]
)
def test_the_others_go_on_with_zeros(world_size: int, transport: str) -> None:
    machines = [rank // 3 for rank in range(world_size)]
    results = run_ranks(
        world_size,
        join_in_turn,
        transport=transport,
        machines=machines if transport == "auto" else None,
    )
    total = sum(range(1, world_size + 1))
    for rank, found in enumerate(results):
        absent = [first for first in range(world_size) if first != rank]
        assert found == [[total - (first + 1)] * 3 for first in absent]


def leave_one_after_another() -> tuple[list[float], int]:
    """Rank r has r + 1 batches; the averages divide by the number of all ranks."""
    averages = [
        float(bf.allreduce(torch.tensor(float(bf.size()))))
        for _ in range(bf.rank() + 1)
    ]
    return averages, bf.join()


def test_the_last_rank_to_join_is_named() -> None:
    for rank, (averages, last) in enumerate(run_ranks(4, leave_one_after_another)):
        assert averages == [4.0, 3.0, 2.0, 1.0][: rank + 1]
        assert last == 3


def messages_from_others() -> list[int]:
    return [each.messages_received for each in bf.stats().neighbors]


def join_late(late: int, folder: Path) -> int:
    """Let one rank join a while after the others have told it that they join."""
    bf.barrier()
    if bf.rank() == late:
        before = messages_from_others()
        assert len(before) == 2
        say(folder, "counted")
        wait_until(
            lambda: all(map(operator.gt, messages_from_others(), before)),
            "the others do not join",
        )
        # On a busy machine, it might be the slowest to notice the end of its wait.
        with mock.patch.object(sys.modules["bluecomm.ops.join"], "time") as clock:
            clock.monotonic.return_value = 0.0
            return bf.join()
    hear(folder, "counted")
    return bf.join()


@pytest.mark.parametrize("late", [0, 2])
def test_without_operations_the_latest_rank_is_named(late: int, tmp_path: Path) -> None:
    assert run_ranks(3, join_late, late, tmp_path) == [late] * 3


def reduce_with_other_operators() -> dict[str, list[float]]:
    found = {}
    if bf.rank() != 1:
        x = torch.tensor([-3.0, 2.0, 5.0]) * (1 + bf.rank())
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            for op in (bf.Min, bf.Max, bf.Product, bf.Adasum):
                result = bf.allreduce(x.to(dtype), op=op, prescale_factor=2.0)
                assert found.setdefault(op.value, result.tolist()) == result.tolist()
        for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
            for op in (bf.Min, bf.Max, bf.Product):
                found[f"{op.value} of {dtype}"] = bf.allreduce(
                    x.to(dtype), op=op
                ).tolist()
        bits = torch.tensor([bf.rank() == 0, True, False])
        for op in (bf.Sum, bf.Product):
            found[f"{op.value} of bool"] = bf.allreduce(bits, op=op).tolist()
        found["rows"] = bf.reducescatter(x, op=bf.Sum).tolist()
        found["nothing"] = bf.allreduce(torch.empty(0)).tolist()
    bf.join()
    return found


def test_each_operator_has_a_neutral_value() -> None:
    results = run_ranks(3, reduce_with_other_operators)
    x, y = torch.tensor([-3.0, 2.0, 5.0]), torch.tensor([-9.0, 6.0, 15.0])
    for rank in (0, 2):
        found = results[rank]
        assert found["min"] == (2 * torch.minimum(x, y)).tolist()
        assert found["max"] == (2 * torch.maximum(x, y)).tolist()
        assert found["product"] == (4 * x * y).tolist()
        # The adasum of parallel tensors has their mean length.
        assert found["adasum"] == (x + y).tolist()
        for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
            assert found[f"min of {dtype}"] == torch.minimum(x, y).tolist()
            assert found[f"max of {dtype}"] == torch.maximum(x, y).tolist()
            assert found[f"product of {dtype}"] == (x * y).tolist()
        assert found["sum of bool"] == [True, True, False]
        assert found["product of bool"] == [False, True, False]
        assert found["rows"] == [(x + y)[rank].item()]
        assert found["nothing"] == []


def call_what_needs_data() -> list[str]:
    texts = []
    if bf.rank() != 0:
        x = torch.ones(10_000)
        for call in (
            lambda: bf.allgather(x),
            lambda: bf.allgather(x, name="b"),
            lambda: bf.alltoall(x[:9]),
        ):
            with pytest.raises(
                bf.MismatchError, match=r"rank 0.* has joined"
            ) as caught:
                call()
            texts.append(str(caught.value))
        assert float(bf.allreduce(torch.tensor(1.0), name="b", op=bf.Sum)) == 2.0
        members = bf.ProcessSet([1, 2])
        assert bf.allgather(torch.ones(1), process_set=members).tolist() == [1.0] * 2
    else:
        bf.ProcessSet([1, 2])
    bf.join()
    assert float(bf.broadcast(torch.tensor(bf.rank() * 1.0), 1, name="b")) == 1.0
    return texts


def test_operations_that_need_data_are_errors_on_their_callers() -> None:
    for texts in run_ranks(3, call_what_needs_data)[1:]:
        for kind, text in zip(
            ("allgather", "allgather", "alltoall"),
            texts,
            strict=True,
        ):
            assert text.startswith(kind), text
            assert "takes part only in barrier, reducescatter and allreduce" in text


def join_with_operations_under_way() -> tuple[float, float]:
    """Ranks join while operations that they have started still run."""
    mine = bf.allreduce_nonblocking(
        torch.tensor(1.0), name=f"only rank {bf.rank()}", op=bf.Sum
    )
    gathered = bf.allgather_nonblocking(torch.tensor([1.0]), name="all")
    last = bf.join()
    assert last in range(bf.size())
    return float(bf.wait(mine)), float(bf.wait(gathered).sum())


def test_operations_under_way_end_before_the_join() -> None:
    for _ in range(5):
        assert run_ranks(4, join_with_operations_under_way) == [(1.0, 4.0)] * 4


def train_unevenly() -> tuple[list[float], int]:
    """Rank r has r + 1 batches, and averages its loss besides its gradients."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1, bias=False)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model
    )
    for _ in range(bf.rank() + 1):
        optimizer.zero_grad()
        loss = model(torch.ones(1, 4)).sum()
        loss.backward()
        optimizer.step()
        bf.allreduce(loss.detach(), name="loss")
    last = bf.join()
    bf.broadcast_parameters(model.state_dict(), last)
    return model.weight.detach().flatten().tolist(), last


def test_optimizer_and_own_operations_join_together() -> None:
    torch.manual_seed(0)
    start = torch.nn.Linear(4, 1, bias=False).weight.detach().flatten()
    # Each step moves by the mean gradient of the ranks that have data.
    for weight, last in run_ranks(3, train_unevenly):
        assert last == 2
        assert weight == pytest.approx((start - 0.3).tolist(), abs=1e-6)


def join_after_a_late_failure() -> float:
    fail_late()
    if bf.rank() == 0:
        late = r"was carried out; an earlier operation failed on rank 1"
        with pytest.raises(bf.MismatchError, match=late):
            bf.join()
    else:
        bf.join()
    return float(bf.allreduce(torch.tensor(1.0), op=bf.Sum))


def test_late_failures_are_raised_when_all_have_joined() -> None:
    assert run_ranks(3, join_after_a_late_failure) == [3.0] * 3


def join_with_codes_on_the_way(folder: Path) -> list[float]:
    """Rank 0 joins, and makes its second call after the others have made theirs."""
    others = [f"allgather {rank}" for rank in range(1, bf.size())]
    codes, join = (sys.modules[f"bluecomm.ops.{name}"] for name in _MODULES)
    begin, combine, calls = (
        codes.start_gather,
        codes.CodedPieces.combine,
        join.JoinedCalls,
    )

    def start_gather(comm: Communicator, kind: str, *args: Any, **kwargs: Any) -> Any:
        started = begin(comm, kind, *args, **kwargs)
        say(folder, f"{kind} {bf.rank()}")
        return started

    def combine_late(*args: Any) -> None:
        if bf.rank() == 0:
            for word in others:
                hear(folder, word)
            time.sleep(0.2)  # an announcement of that call would have come by then
        combine(*args)

    def say_joined(world: Any) -> Any:
        say(folder, "joined")
        return calls(world)

    with (
        mock.patch.object(codes, "start_gather", start_gather),
        mock.patch.object(codes.CodedPieces, "combine", combine_late),
        mock.patch.object(join, "JoinedCalls", say_joined),
    ):
        if bf.rank() != 0:
            hear(folder, "joined")
        total = bf.compressed_allreduce_nonblocking(
            torch.ones(40), bf.Compression.fp16, op=bf.Sum
        )
        if bf.rank() != 0:
            total = DoneHandle(bf.wait(total))
        bf.join()
        return bf.wait(total)[:2].tolist()


def test_operations_of_several_calls_end_before_the_join(tmp_path: Path) -> None:
    # The host exchanges the codes of a tensor on a GPU, too.
    environment = {"BLUECOMM_DEVICE_TRANSPORT": "staged"}
    found = run_ranks(3, join_with_codes_on_the_way, tmp_path, environment=environment)
    assert found == [[3.0, 3.0]] * 3
