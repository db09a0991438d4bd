"""Child processes of a rank hold none of its resources and cannot act for it."""

from __future__ import annotations

import collections
import multiprocessing
import os
import re
import signal
import sys

import pytest
import torch

import bluecomm as bf
from bluecomm.errors import ShutdownError
from tests.support.deadlines import DEADLINE_S
from tests.support.launch import launched
from tests.support.outcome import outcome_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.faults


def _in_fork(body):
    """Return what ``body`` returns in a forked child."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    # multiprocessing.Process does not work here: this worker is daemonic.
    pid = os.fork()
    if pid == 0:
        theirs.send(body())
        os._exit(0)
    result = ours.recv() if ours.poll(DEADLINE_S) else None
    os.waitpid(pid, 0)
    return result


def _engine_fds():
    """Count the open descriptors of the data plane, by kind."""
    names = collections.Counter()
    for fd in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if name.startswith(("socket:", "anon_inode:[event")):
            names[name] += 1
    return names


def _call_everything():
    handle_error = outcome_of(lambda: bf.allreduce(torch.ones(2), name="child"))
    bf.shutdown()
    return handle_error, bf.is_initialized(), _engine_fds()


def _operate_in_a_fork():
    before = float(bf.allreduce(torch.ones(2), name="before", op=bf.Sum)[0])
    fds = _engine_fds()
    child = _in_fork(_call_everything)
    after = float(bf.allreduce(torch.ones(2), name="after", op=bf.Sum)[0])
    return before, child, after, os.getpid(), fds


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_operation_in_a_fork_is_refused(transport):
    outcomes = run_ranks(2, _operate_in_a_fork, transport=transport)
    for rank, (before, child, after, pid, fds) in enumerate(outcomes):
        outcome, is_initialized, child_fds = child
        assert (before, after) == (2.0, 2.0)
        assert isinstance(outcome.error, ShutdownError)
        assert f"is a fork of rank {rank} (pid {pid})" in outcome.text
        assert not is_initialized
        # Two doorbells, a listener, a link to the other rank and a link to the agent.
        assert (fds - child_fds).total() >= 5


def _wait_for_a_handle_in_a_fork():
    handle = bf.allreduce_nonblocking(torch.ones(2), name="x")
    child = _in_fork(lambda: outcome_of(handle.wait))
    return child, float(handle.wait()[0])


def test_a_handle_cannot_be_waited_for_in_a_fork():
    for child, result in run_ranks(2, _wait_for_a_handle_in_a_fork):
        assert isinstance(child.error, ShutdownError)
        assert result == 1.0


def _init_in_a_fork():
    refused = _in_fork(lambda: outcome_of(bf.init))
    again = _in_fork(lambda: (bf.shutdown(), outcome_of(bf.init))[1])
    return os.getpid(), refused, again, float(bf.allreduce(torch.ones(1))[0])


def test_init_in_a_fork_of_a_rank_is_refused_at_once():
    for rank, (pid, *outcomes, mean) in enumerate(run_ranks(2, _init_in_a_fork)):
        assert mean == 1.0
        for outcome in outcomes:
            assert isinstance(outcome.error, ShutdownError)
            assert f"is a fork of rank {rank} (pid {pid})" in outcome.text
            assert "fork before the first init" in outcome.text


def _be_a_rank():
    bf.init()
    x = bf.shared_empty(1000).fill_(bf.rank())
    bf.allreduce_(x, op=bf.Sum)
    bf.shutdown()
    return float(x[0])


def _init_only_in_a_fork():
    bf.shared_empty(10)  # its memory belongs to the parent
    return _in_fork(lambda: outcome_of(_be_a_rank))


def test_a_child_may_be_the_rank_if_its_parent_is_not():
    for outcome in run_ranks(2, _init_only_in_a_fork, initialize=False):
        assert outcome.result == 1.0, outcome.text


# The children of rank 1 outlive it for a while.
WORKERS = """
import multiprocessing, os, time, torch
import bluecomm as bf
bf.init()
bf.allreduce(torch.ones(2), name="first")
if bf.rank() == 1:
    context = multiprocessing.get_context("fork")
    for _ in range(2):
        context.Process(target=time.sleep, args=(1000,)).start()
    print(f"victim {os.getpid()}", flush=True)
    time.sleep(1000)
bf.allreduce(torch.ones(2), name="second")
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_workers_of_a_dead_rank_do_not_hold_up_others(transport, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(WORKERS)
    options = ["-np", "2", "-x", f"BLUECOMM_TRANSPORT={transport}"]
    command = (sys.executable, str(path))
    with launched(tmp_path, *options, *command, patient=True) as job:
        victim = int(job.wait_for(r"victim (\d+)")[1])
        os.kill(victim, signal.SIGKILL)
        job.wait_for(r"PeerLostError: allreduce 'second' on rank 0: rank 1 on")
        assert job.wait() == 137
        assert job.left() == {}


UNGUARDED = """
import multiprocessing, os, time
import bluecomm as bf

def child():
    pass

try:
    bf.init()
except bf.BluecommError as error:
    print(f"second {os.getpid()}: {error}", flush=True)
    raise SystemExit(0)
print(f"first {os.getpid()}", flush=True)
if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=child)
    worker.start()
    worker.join()
    bf.barrier()
    print("size", bf.size(), flush=True)
"""


def test_a_spawned_child_cannot_claim_the_rank(tmp_path):
    """The child imports the script, whose init() is outside the main guard."""
    path = tmp_path / "program.py"
    path.write_text(UNGUARDED)
    with launched(tmp_path, "-np", "1", sys.executable, str(path)) as job:
        assert job.wait() == 0, job.err
        first = job.wait_for(r"first (\d+)")[1]
        second = job.wait_for(r"second (\d+): (.*)")
        assert first in second[2]
        assert second[1] in second[2]
        assert re.search("__main__", second[2])
        assert "size 1" in job.out
