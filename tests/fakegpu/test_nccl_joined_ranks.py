"""Ranks that have joined take part in calls of others through NCCL."""

from __future__ import annotations

import operator
import sys
from functools import reduce
from typing import Any
from unittest import mock

import pytest
import torch

import bluecomm as bf
from tests.mp import test_join
from tests.support.fakegpu.over import over_fakegpu
from tests.support.fakegpu.ranks import run_ranks_on_gpus
from tests.support.fakegpu.transports import NCCL

pytestmark = pytest.mark.mp
RANKS = 3
# Elements of a bitwise allreduce that takes two calls.
LARGE = 1 << 19


def reduce_without_rank_1(
    values: torch.Tensor, bits: torch.Tensor, rows: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return results of calls in which rank 1 has no data, then of one in which it has.

    The ranks have the same arguments, and multiply ``values`` by their number.
    """
    found: dict[str, torch.Tensor] = {}
    mine = values * (bf.rank() + 1)
    if bf.rank() != 1:
        for op in (bf.Sum, bf.Average, bf.Min, bf.Max, bf.Product):
            found[op.value] = bf.allreduce(mine, op=op)
        found["a long name"] = bf.allreduce(mine, op=bf.Sum, name="x" * 200)
        found["int16"] = bf.allreduce(mine.to(torch.int16), op=bf.Sum)
        for op in (bf.BitAnd, bf.BitOr, bf.BitXor):
            found[op.value] = bf.allreduce(bits + bf.rank(), op=op)[:1]
        splits = [3, 0, len(rows) - 3]
        found["rows"] = bf.reducescatter(rows, op=bf.Sum, splits=splits)
        found["two"] = torch.stack(bf.grouped_allreduce([mine, mine + 1], op=bf.Sum))
    before = bf.stats().devices.nccl_calls
    assert bf.join() != 1
    assert (bf.stats().devices.nccl_calls > before) == (bf.rank() == 1)
    found["all"] = bf.allreduce(mine, op=bf.Sum, name="x" * 200)
    return found


def test_results_are_those_of_the_others(seed: int) -> None:
    values, bits = torch.tensor([1.0, -2.0]), torch.full((LARGE,), 5, dtype=torch.uint8)
    rows = torch.arange(10.0).view(5, 2)
    results = run_ranks_on_gpus(
        RANKS, reduce_without_rank_1, values, bits, rows, environment=NCCL, seed=seed
    )
    expected = {
        "sum": 4 * values,
        "average": 4 * values / RANKS,
        "min": torch.tensor([1.0, -6.0]),
        "max": torch.tensor([3.0, -2.0]),
        "product": 3 * values * values,
        "a long name": 4 * values,
        "int16": (4 * values).to(torch.int16),
        "two": torch.stack([4 * values, 4 * values + 2]),
    }
    for op in (operator.and_, operator.or_, operator.xor):
        word = {"and_": "bit_and", "or_": "bit_or", "xor": "bit_xor"}[op.__name__]
        expected[word] = torch.tensor([reduce(op, (5, 7))], dtype=torch.uint8)
    for rank in (0, 2):
        own = dict(expected, rows=2 * (rows[:3] if rank == 0 else rows[3:]))
        for what, value in own.items():
            assert torch.equal(results[rank][what], value), what
    for found in results:
        assert torch.equal(found["all"], 6 * values)


def join_with_rows_on_the_way() -> tuple[int, float, list[int]]:
    """Ranks join while calls that they have started take part in one another."""
    mine = bf.allreduce_nonblocking(
        torch.ones(3), name=f"only rank {bf.rank()}", op=bf.Sum
    )
    rows = bf.allgather_nonblocking(torch.ones(bf.rank() + 1), name="rows")
    bits = bf.allreduce_nonblocking(
        torch.full((LARGE,), 1 << bf.rank(), dtype=torch.uint8),
        op=bf.BitOr,
        name="bits",
    )
    bf.join()
    return len(bf.wait(rows)), float(bf.wait(mine)[0]), bf.wait(bits)[:2].tolist()


def test_operations_of_several_calls_end_before_the_join(seed: int) -> None:
    found = run_ranks_on_gpus(
        RANKS, join_with_rows_on_the_way, environment=NCCL, seed=seed
    )
    assert found == [(6, 1.0, [7, 7])] * RANKS


def call_in_groups_of_some_ranks() -> list[float]:
    """Rank 1, which has joined, has made no calls of these groups before."""
    members = bf.ProcessSet([0, 1, 2])
    found: list[float] = []
    if bf.rank() == 0:
        x = torch.ones(1)
        given: dict[str, Any] = {"op": bf.Sum, "is_hierarchical_local": True}
        found += bf.allreduce(x, **given).tolist()
        found += bf.allreduce(x, process_set=members, **given).tolist()
        with pytest.raises(bf.MismatchError, match=r"rank 1.* has joined"):
            bf.pair_gossip(x, 1)
    bf.join()
    return found


def test_ranks_take_part_in_groups_that_they_have_not_used() -> None:
    found = run_ranks_on_gpus(
        *(4, call_in_groups_of_some_ranks),
        machines=[0, 0, 1, 1],
        environment=NCCL,
    )
    assert found == [[1.0, 1.0], [], [], []]


def fail_to_take_part() -> list[str]:
    """Return the error of the first call in which rank 0 cannot take part."""
    x, texts = torch.ones(2), []
    if bf.rank() == 0:
        module = sys.modules["bluecomm.ops.joined_calls"]
        own = module.own_device
        fails = [RuntimeError("this rank has lost its GPU"), mock.DEFAULT]
        with mock.patch.object(module, "own_device", wraps=own, side_effect=fails):
            bf.join()
    else:
        with pytest.raises(bf.MismatchError, match=r"rank 0.*lost its GPU") as caught:
            bf.allreduce(x, name="x")
        texts.append(str(caught.value))
        assert bf.allreduce(x, name="x", op=bf.Sum).tolist() == [2.0, 2.0]
        bf.join()
    return texts


def test_callers_learn_why_a_rank_cannot_take_part() -> None:
    found = run_ranks_on_gpus(RANKS, fail_to_take_part, environment=NCCL)
    assert [len(texts) for texts in found] == [0, 1, 1]


def join_after_a_free() -> list[float]:
    freed = bf.ProcessSet(range(bf.size()))
    bf.allreduce(torch.ones(2), process_set=freed, is_hierarchical_local=True)
    freed.free()
    never_used = bf.ProcessSet([0, 1])
    never_used.free()
    found = [] if bf.rank() else bf.allreduce(torch.ones(2), op=bf.Sum).tolist()
    bf.join()
    return found


def test_sets_that_were_freed_do_not_disturb_joins() -> None:
    found = run_ranks_on_gpus(
        4, join_after_a_free, environment=NCCL, machines=[0, 0, 1, 1]
    )
    assert found[0] == [1.0, 1.0]


def test_jobs_of_the_host_do_the_same_on_gpus() -> None:
    with over_fakegpu("nccl", seed=1):
        test_join.test_operations_that_need_data_are_errors_on_their_callers()
        test_join.test_optimizer_and_own_operations_join_together()
        test_join.test_the_others_go_on_with_zeros(6, "auto")
        test_join.test_late_failures_are_raised_when_all_have_joined()
