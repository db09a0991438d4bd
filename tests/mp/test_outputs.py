"""Results in memory that the caller gives, on several ranks."""

from __future__ import annotations

import pytest
import torch

import bluecomm as bf
from bluecomm import errors
from tests.support.outcome import outcome_of
from tests.support.ranks import run_ranks


def _gather(rows):
    """Check every kind of memory against new memory; return what differs."""
    rank, size = bf.rank(), bf.size()
    x = torch.full((rows + rank, 3), float(rank))
    expected = bf.allgather(x)
    counts = [rows + other for other in range(size)]
    whole = torch.zeros_like(expected)
    pieces = list(torch.zeros_like(expected).split(counts))
    shared = bf.shared_empty(expected.shape)
    mine = shared.split(counts)[rank].copy_(x)
    wrong = [
        not torch.equal(bf.allgather(x, out=whole), expected),
        not torch.equal(torch.cat(bf.allgather(x, out=pieces)), expected),
        not torch.equal(bf.allgather(mine, out=shared), expected),  # in place
        # Each rank may give memory or not.
        not torch.equal(bf.allgather(x, out=whole if rank == 0 else None), expected),
    ]
    splits = [rows + other for other in range(size)]
    y = torch.arange(float(sum(splits) * 2)).view(-1, 2) + 1000 * rank
    expected, received = bf.alltoall(y, splits)
    whole = torch.zeros_like(expected)
    pieces = list(torch.zeros_like(expected).split(received.tolist()))
    wrong += [
        not torch.equal(bf.alltoall(y, splits, out=whole), expected),
        not torch.equal(torch.cat(bf.alltoall(y, splits, out=pieces)), expected),
    ]
    z = torch.arange(float(size * rows * 2)).view(-1, 2) + rank
    expected = bf.reducescatter(z)
    own = z.split(rows)[rank]
    wrong += [
        not torch.equal(bf.reducescatter(z, out=torch.zeros_like(expected)), expected),
        not torch.equal(bf.reducescatter(z, out=own), expected),
        not torch.equal(own, expected),
    ]
    return wrong


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("rows", [1, 70_000])
def test_every_kind_of_memory_gets_the_result(transport, rows):
    for wrong in run_ranks(3, _gather, rows, transport=transport):
        assert wrong == [False] * 9


def _give_too_little():
    """Return the outcomes of two calls that fail, and of a good one after them.

    A rank that has finished its part of a failed call may learn of the failure in one
    of the next calls.
    """
    x = torch.ones(2, 3)
    out = torch.empty(3 if bf.rank() == 0 else 4, 3)
    outcomes = [outcome_of(lambda: bf.allgather(x, out=out, name="x"))]
    uneven = [torch.empty(2, 3), torch.empty(3 if bf.rank() else 2, 3)]
    outcomes.append(outcome_of(lambda: bf.allgather(x, out=uneven, name="y")))
    outcomes += [outcome_of(bf.barrier) for _ in range(2)]
    errors_of = [outcome.error for outcome in outcomes if outcome.error]
    return errors_of, bf.allreduce(torch.ones(1), name="z").item()


def test_memory_of_the_wrong_length_fails_on_all_ranks():
    for found, after in run_ranks(2, _give_too_little):
        assert all(isinstance(error, errors.MismatchError) for error in found)
        # The error of the second call may also tell of the first one's failure.
        said = "\n".join(map(str, found))
        assert "'x' on rank 0: expected an output of 48 bytes" in said
        assert "'y' on rank 1: expected an output of 24 bytes" in said
        assert "for the rows of this rank, got 36 bytes" in said
        assert after == 1


def _rooted():
    """Gather, reduce and scatter into given memory; return what is wrong."""
    rank, size = bf.rank(), bf.size()
    is_root = rank == 1
    x = torch.full((2, 3), float(rank))
    rows = torch.zeros(2 * size, 3)
    gathered = bf.gather(x, 1, out=rows if is_root else None)
    listed = list(torch.zeros(2 * size, 3).split(2))
    bf.gather(x, 1, out=listed if is_root else None)
    total = torch.zeros(2, 3)
    version = total._version
    reduced = bf.reduce(x, 1, bf.Sum, out=total if is_root else None)
    scalar = torch.zeros(())
    bf.reduce(torch.tensor(2.0), 1, bf.Sum, out=scalar if is_root else None)
    parts = [torch.full((r + 1,), float(r)) for r in range(size)] if is_root else None
    mine = torch.zeros(rank + 1)
    scattered = bf.scatter(parts, 1, out=mine)
    wrong = [mine.tolist() != [float(rank)] * (rank + 1), scattered is not mine]
    if is_root:
        expected = torch.cat([torch.full((2, 3), float(r)) for r in range(size)])
        wrong += [
            gathered is not rows,
            not torch.equal(rows, expected),
            not torch.equal(torch.cat(listed), expected),
            reduced is not total,
            total[0, 0].item() != sum(range(size)),
            total._version == version,
            scalar.item() != 2.0 * size,
        ]
    for misuse in (
        lambda: bf.reduce(x, 1, out=torch.zeros(2, 3)),
        lambda: bf.gather(x, 1, out=rows),
    ):
        refused = outcome_of(misuse).error
        told = "" if is_root else "only the root, rank 1, gets a result"
        wrong.append(refused is None or told not in str(refused))
    for out, text in (
        (torch.zeros(3), r"shape (2, 3), got"),
        (torch.zeros(2, 3).half(), "type torch.float32"),
        (torch.zeros(3, 2).t(), "contiguous"),
    ):
        error = outcome_of(lambda out=out: bf.reduce(x, 1, out=out)).error
        wrong.append(is_root and text not in str(error))
    late = outcome_of(lambda: bf.scatter(parts, 1, out=torch.zeros(9))).error
    wrong.append("shape" not in str(late))
    return [index for index, one in enumerate(wrong) if one]


def test_rooted_operations_write_to_given_memory():
    assert run_ranks(3, _rooted) == [[], [], []]
