"""Results that are written over a part of the input, which the host refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import bluecomm as bf
from tests.support.errors import error_text
from tests.support.fakegpu.ranks import run_ranks_on_gpus
from tests.support.torch_world import torch_world

pytestmark = pytest.mark.mp
RANKS = 3
PATHS = pytest.mark.parametrize("path", ["nccl", "staged"])
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


@PATHS
def test_a_result_may_overlap_the_input(path, seed):
    environment = {"BLUECOMM_DEVICE_TRANSPORT": path}
    for found in run_ranks_on_gpus(
        RANKS, overlapping_calls, seed=seed, environment=environment
    ):
        for call, (over, alone) in found.items():
            torch.testing.assert_close(over, alone, msg=f"{call}: {over} {alone}")


def give_outputs_that_overlap() -> tuple[str, list[float]]:
    """Return the error of a call, and the result of the next one."""
    memory, x = torch.zeros(8), torch.ones(2)
    outputs = [memory[i : i + 2] for i in (0, 1, 4)]
    text = error_text(lambda: bf.allgather(x, out=outputs))
    return text, bf.allreduce(x, op=bf.Sum).tolist()


@PATHS
def test_outputs_that_overlap_each_other_are_refused(path):
    environment = {"BLUECOMM_DEVICE_TRANSPORT": path}
    for text, total in run_ranks_on_gpus(
        RANKS, give_outputs_that_overlap, environment=environment
    ):
        assert text.startswith("ValueError: allgather: expected outputs that do not")
        assert total == [3, 3]


def overlapping_calls_of_a_group(folder: Path) -> list[list[torch.Tensor]]:
    """Return results of calls of torch over the input, and those in other memory."""
    with torch_world(folder, RANKS) as rank:
        found = []
        for lengths in ([4, 4, 4], [1, 3, 4]):
            begin, total = sum(lengths[:rank]), sum(lengths)
            for first in (begin, 2):  # the part of this rank, or another one
                x = torch.arange(12.0) * (rank + 1)
                y = x.clone()
                mine = x[first : first + lengths[rank]]
                alone = [torch.zeros(length) for length in lengths]
                dist.all_gather(alone, mine)
                dist.all_gather(
                    list(y[:total].split(lengths)), y[first : first + len(mine)]
                )
                found.append([y[:total], torch.cat(alone)])
                parts = list(x[:total].split(lengths)) if rank == 1 else None
                dist.gather(mine, parts, 1)
                if rank == 1:
                    found.append([x[:total], torch.cat(alone)])
        return found


def test_results_of_groups_may_overlap_the_input(tmp_path, seed):
    environment = {"BLUECOMM_DEVICE_TRANSPORT": "nccl"}
    for results in run_ranks_on_gpus(
        RANKS,
        overlapping_calls_of_a_group,
        tmp_path,
        seed=seed,
        environment=environment,
    ):
        for over, alone in results:
            torch.testing.assert_close(over, alone)
