"""Results are in shared memory that is reused, also after forks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

import bluecomm as bf
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

MIB = 1 << 20
# Limit of the empty segments that are kept; see native/common/shared_memory.h.
MOST_IDLE = 256 * MIB


def mapped_nbytes() -> int:
    """Return the bytes of result segments that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0] for line in lines if re.search(r"memfd:bluecomm\b", line)]
    return sum(
        int(end, 16) - int(begin, 16)
        for begin, end in (span.split("-") for span in spans)
    )


def average(mib: int) -> torch.Tensor:
    """Return an average over all ranks of a tensor of the given size in MiB."""
    return bf.allreduce(torch.full((mib * MIB // 4,), float(bf.rank())))


def use_again() -> tuple[int, int, int]:
    """Return the bytes mapped after one result, after many, and their addresses."""
    places = {average(2).data_ptr()}
    once = mapped_nbytes()
    for _ in range(50):
        places.add(average(2).data_ptr())
    return once, mapped_nbytes(), len(places)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_memory_of_dropped_results_is_reused(transport: str) -> None:
    for once, often, places in run_ranks(2, use_again, transport=transport):
        assert often == once
        assert places == 1


def hold_many() -> tuple[int, int]:
    """Return the bytes mapped while ten results exist, and those kept afterwards."""
    before = mapped_nbytes()
    results = [average(64) for _ in range(10)]
    assert len({result.data_ptr() for result in results}) == len(results)
    while_held = mapped_nbytes()
    results.clear()
    bf.barrier()
    return while_held, mapped_nbytes() - before


def test_unused_memory_of_results_is_returned() -> None:
    for while_held, after in run_ranks(1, hold_many):
        assert while_held >= 640 * MIB
        assert after <= MOST_IDLE


def drop_in_a_fork() -> tuple[bool, float, float]:
    """Drop the parent's results in a child, then continue in the parent."""
    result = average(1)
    pid = os.fork()
    if pid == 0:
        value = float(result[-1])
        del result
        refused = False
        try:
            bf.shared_empty(1)
        except RuntimeError as error:
            refused = "cannot be allocated in its forked child" in str(error)
        os._exit(0 if refused and value == 0.5 else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    other = average(1)
    other.fill_(7)
    return status == 0, float(result[-1]), float(other[-1])


def test_a_forked_child_reads_results_and_frees_none() -> None:
    assert run_ranks(2, drop_in_a_fork) == [(True, 0.5, 7.0)] * 2
