"""The end of a world: finished ranks serve their windows, and nothing is left."""

from __future__ import annotations

import gc
import operator
import os
import re
import signal
import sys

import pytest
import torch

import bluecomm as bf
from tests.support.deadlines import hear, say, wait_until
from tests.support.launch import launched
from tests.support.outcome import outcome_of
from tests.support.ranks import run_ranks


def _finish_early(folder):
    """Rank 0 finishes at once; the others still use its windows."""
    bf.init()
    bf.set_topology(bf.FullyConnectedGraph(bf.size()))
    x = torch.full((1000,), float(bf.rank()))
    bf.win_create(x, "x", zero_init=True)
    outcomes = []
    if bf.rank() == 0:
        say(folder, "finished")
    else:
        hear(folder, "finished")
        for call in (
            lambda: bf.win_accumulate(x, "x", dst_weights={0: 1.0}),
            lambda: bf.win_get("x", {0: 1.0}),
            lambda: bf.win_put(x, "x", require_mutex=True),
            lambda: bf.win_update("x"),
        ):
            outcomes.append(outcome_of(call))
    bf.shutdown()
    return outcomes


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_finished_rank_serves_its_windows(transport, tmp_path):
    ranks = run_ranks(3, _finish_early, tmp_path, transport=transport, initialize=False)
    assert [len(outcomes) for outcomes in ranks] == [0, 4, 4]
    for outcomes in ranks:
        assert [outcome.text for outcome in outcomes if outcome.error] == []


def _free_windows_first(folder):
    """Rank 0 ends only after rank 1 has ended."""
    bf.init()
    bf.win_create(torch.zeros(1), "x")
    bf.win_free("x")
    rank = bf.rank()
    if rank == 0:
        hear(folder, "ended")
    bf.shutdown()
    if rank == 1:
        say(folder, "ended")
    return bf.is_initialized()


def test_only_ranks_with_live_windows_wait_for_the_others(tmp_path):
    assert run_ranks(2, _free_windows_first, tmp_path, initialize=False) == [False] * 2


def _resources():
    """Return the numbers of open descriptors, mappings and threads."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        ours = [line for line in maps if "bluecomm" in line or "memfd" in line]
    return (
        len(os.listdir("/proc/self/fd")),
        len(ours),
        len(os.listdir("/proc/self/task")),
    )


def _start_and_end():
    counts = []
    for _ in range(6):
        bf.init()
        x = torch.ones(100_000)
        bf.allreduce(x)
        bf.allgather(x, name="x")
        bf.neighbor_allreduce(x)
        bf.broadcast_nonblocking(x, 0)  # the handle is dropped
        subset = bf.ProcessSet([0])
        if subset.included:
            bf.allreduce(x, process_set=subset)
        bf.win_create(x, "freed")
        bf.win_free("freed")
        bf.win_create(x, "live")
        bf.win_put(x, "live")
        bf.win_update("live")
        bf.shutdown()
        counts.append(_resources())
    # A thread that has been joined may be in /proc for a moment longer.
    wait_until(
        lambda: all(map(operator.le, _resources(), counts[1])),
        lambda: f"{counts}, then {_resources()}",
    )


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_worlds_leave_nothing(transport):
    run_ranks(2, _start_and_end, transport=transport, initialize=False)


# The ranks end their scripts one after the other, and never call shutdown.
UNEVEN = """
import os, time, torch
import bluecomm as bf
bf.init()
x = torch.full((1000,), float(bf.rank()))
bf.win_create(x, "x")
if bf.rank() == 1:
    print(f"last {os.getpid()}", flush=True)
    time.sleep(SECONDS)
    for _ in range(3):
        bf.win_put(x, "x")
        bf.win_update("x")
        time.sleep(0.1)
print("done", flush=True)
"""


def _write(tmp_path, seconds):
    path = tmp_path / "program.py"
    path.write_text(UNEVEN.replace("SECONDS", str(seconds)))
    return sys.executable, str(path)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_script_that_ends_serves_its_windows(transport, tmp_path):
    options = ["-np", "3", "-x", f"BLUECOMM_TRANSPORT={transport}"]
    with launched(tmp_path, *options, *_write(tmp_path, 1.0)) as job:
        assert job.wait() == 0, job.err
        assert job.out.count("done") == 3


def test_a_finished_rank_ends_when_another_is_lost(tmp_path):
    with launched(tmp_path, "-np", "3", *_write(tmp_path, 3000), patient=True) as job:
        for rank in (0, 2):
            job.wait_for(rf"\[{rank}\] done")
        victim = int(job.wait_for(r"last (\d+)")[1])
        os.kill(victim, signal.SIGKILL)
        assert job.wait() == 137
        assert job.left() == {}
        for rank in (0, 2):
            assert re.search(
                rf"\[{rank}\] .*rank {rank} no longer serves its windows: barrier "
                rf"'bluecomm.shutdown' on rank \d: rank 1 on \S+ \(pid {victim}\) was "
                "killed by SIGKILL",
                job.err,
            ), job.err


def test_ctrl_c_ends_a_finished_rank(tmp_path):
    with launched(tmp_path, "-np", "2", *_write(tmp_path, 3000)) as job:
        job.wait_for(r"\[0\] done")
        job.wait_for(r"last (\d+)")
        job.signal(signal.SIGINT)
        assert job.wait() == 130
        assert job.left() == {}
