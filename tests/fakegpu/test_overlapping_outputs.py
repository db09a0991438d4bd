"""Results that are written over a part of the input, which the host refuses."""

from __future__ import annotations

import pytest
import torch

import bluecomm as bf
from tests.support.fakegpu.ranks import run_ranks_on_gpus

pytestmark = pytest.mark.mp
RANKS = 3
# First row and behind the last one of each rank, in order of rank.
UNEVEN = [(0, 6), (6, 9), (9, 11)]


def overlapping_calls() -> dict[str, list[torch.Tensor]]:
    """Return for each call the result over the input, and that in other memory."""
    rank = bf.rank()
    begin, end = UNEVEN[rank]

    def memory() -> torch.Tensor:
        return torch.arange(100.0).view(20, 5) * (rank + 1)

    def call(kind, rows, out, *args, **options):
        x, at_root = memory(), rank == 1 or kind not in (bf.gather, bf.reduce)
        alone = memory()[out].clone() if at_root else None
        over = kind(x[rows], *args, out=x[out] if at_root else None, **options)
        return [over * 1, kind(memory()[rows], *args, out=alone, **options)]

    allgather, six = bf.allgather, slice(0, 6)
    scattered = memory()
    parts = [scattered[i : i + 2] for i in (2, 4, 0)] if rank == 1 else None
    return {
        "allgather": call(allgather, slice(1, 7), slice(0, 18)),
        "allgather, in place": call(
            allgather, slice(6 * rank, 6 * rank + 6), slice(0, 18)
        ),
        "allgather, uneven": call(allgather, slice(begin + 1, end), slice(0, 8)),
        "allgather, uneven, in place": call(allgather, slice(begin, end), slice(0, 11)),
        "alltoall": call(bf.alltoall, six, six),
        "alltoall, shifted": call(bf.alltoall, six, slice(1, 7)),
        "gather": call(bf.gather, six, slice(2, 20), 1),
        "reduce": call(bf.reduce, six, slice(2, 8), 1, op=bf.Sum),
        "reduce, in place": call(bf.reduce, six, six, 1, op=bf.Sum),
        "reducescatter": call(bf.reducescatter, six, slice(1, 3), op=bf.Sum),
        "reducescatter, first rows": call(
            bf.reducescatter, six, slice(0, 2), op=bf.Sum
        ),
        "scatter": [
            bf.scatter(parts, 1, out=scattered[3:5]) * 1,
            bf.scatter([memory()[i : i + 2] for i in (2, 4, 0)] if parts else None, 1),
        ],
    }


@pytest.mark.parametrize("path", ["nccl", "staged"])
def test_a_result_may_overlap_the_input(path, seed):
    environment = {"BLUECOMM_DEVICE_TRANSPORT": path}
    for found in run_ranks_on_gpus(
        RANKS, overlapping_calls, seed=seed, environment=environment
    ):
        for call, (over, alone) in found.items():
            torch.testing.assert_close(over, alone, msg=f"{call}: {over} {alone}")
