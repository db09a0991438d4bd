"""A rank lives but does not take part: warnings, deadlines, crossed calls."""

from __future__ import annotations

import re
import sys
import time

import pytest
import torch

import bluecomm as bf
from bluecomm.errors import CommunicationTimeout, MismatchError
from tests.support.launch import launched
from tests.support.outcome import outcome_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.faults


def _one_comes_too_late():
    if bf.rank() == 1:
        time.sleep(1.5)
    missed = outcome_of(lambda: bf.allreduce(torch.ones(2), name="x", timeout_s=0.5))
    again = outcome_of(lambda: bf.allreduce(torch.ones(2), name="x"))
    return missed, again


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_deadline_of_a_call(transport):
    outcomes = run_ranks(3, _one_comes_too_late, transport=transport)
    for rank, (missed, again) in enumerate(outcomes):
        assert isinstance(missed.error, CommunicationTimeout)
        assert re.match(
            r"allreduce 'x' on rank [02]: no data from rank 1 within 0\.5 s",
            missed.text,
        )
        # The late one has it from the others.
        assert rank == 1 or missed.error.peers == (1,)
        assert missed.error.rank == rank
        assert missed.error.timeout_s == 0.5
        assert missed.seconds < 0.3 if rank == 1 else 0.4 < missed.seconds < 2.0
        assert again.error is None


def _one_calls_something_else():
    name = "y" if bf.rank() == 1 else "x"
    outcome = outcome_of(lambda: bf.allreduce(torch.ones(2), name=name, timeout_s=1.0))
    time.sleep(0.5)
    bf.barrier()
    return outcome


def test_the_text_tells_what_the_silent_rank_called_instead():
    outcomes = run_ranks(2, _one_calls_something_else)
    for outcome, other in zip(outcomes, "yx", strict=True):
        assert isinstance(outcome.error, CommunicationTimeout)
        assert f"has called allreduce '{other}', which this rank has" in outcome.text


def _wait_for_a_handle():
    if bf.rank() == 1:
        time.sleep(1)
        return float(bf.allreduce(torch.ones(2), name="x")[0]), None
    handle = bf.allreduce_nonblocking(torch.ones(2), name="x")
    early = outcome_of(lambda: handle.wait(timeout_s=0.2))
    return float(handle.wait()[0]), early


def test_a_wait_that_is_too_short_does_not_end_the_operation():
    (result, early), _ = run_ranks(2, _wait_for_a_handle)
    assert result == 1.0
    assert isinstance(early.error, CommunicationTimeout)
    assert "not finished within 0.2 s; the operation goes on" in early.text
    assert early.error.name == "x"


PARTIAL = """
import os, signal, threading, time, torch
import bluecomm as bf
bf.init()
tensor = torch.ones(1 << 26)
pids = bf.allgather_object(os.getpid())

def stop_the_sender_in_the_middle():
    received = 0
    while received < 16 << 20:
        time.sleep(0.001)
        streams = bf.stats().neighbors[0].streams
        received = sum(stream.bytes_received for stream in streams)
    os.kill(pids[1], signal.SIGSTOP)

if bf.rank() == 0:
    threading.Thread(target=stop_the_sender_in_the_middle, daemon=True).start()
bf.barrier()
try:
    bf.broadcast_(tensor, 1, name="x", timeout_s=4)
    bf.barrier()
except bf.CommunicationTimeout as error:
    print(f"text: {error}", flush=True)
    raise
"""


def test_the_text_tells_how_much_has_come(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PARTIAL)
    options = ["-np", "2", "-x", "BLUECOMM_TRANSPORT=tcp", "--failure-timeout", "60"]
    with launched(tmp_path, *options, sys.executable, str(path)) as job:
        text = job.wait_for(r"text: (broadcast 'x' on rank 0: .*)", 30)[1]
        assert re.search(
            r"no data from rank 1 within 4\.0 s "
            r"\(received \d+\.\d of 256\.0 MiB from rank 1\)",
            text,
        )
        assert job.wait(10) == 1
        assert job.left() == {}


LATE = """
import time, torch
import bluecomm as bf
bf.init()
bf.barrier()
if bf.rank() == 0:
    bf.allreduce(torch.ones(4), name="x")
elif bf.rank() == 1:
    time.sleep(14)
    bf.allreduce(torch.ones(4), name="x")
else:
    handle = bf.allreduce_nonblocking(torch.ones(4), name="y")
    time.sleep(14)
    bf.allreduce(torch.ones(4), name="x")
if bf.rank() < 2:
    handle = bf.allreduce_nonblocking(torch.ones(4), name="y")
handle.wait()
print("done")
"""


@pytest.mark.slow
def test_the_warning_tells_what_each_rank_does(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(LATE)
    with launched(tmp_path, "-np", "3", sys.executable, str(path)) as job:
        job.wait_for(r"bluecomm WARNING: allreduce 'x' on rank 0", 30)
        assert job.wait(20) == 0
        assert job.out.count("done") == 3
        table = job.err[job.err.index("bluecomm WARNING: allreduce 'x'") :]
        where = r"on localhost \(pid \d+, running, CPU last used \d+ s ago\)"
        waits = r"has waited 1\d s for ranks 1, 2 \(received 0 of 32 bytes\)"
        assert re.match(rf"bluecomm WARNING: allreduce 'x' on rank 0 {waits}", table)
        x = r"allreduce 'x' for 1\d s \(waits for ranks 1, 2\)"
        y = r"allreduce 'y' for 1\d s \(waits for ranks 0, 1\)"
        assert re.search(rf"rank 0 {where}: {x}", table)
        assert re.search(rf"rank 1 {where}: in no operation", table)
        assert re.search(rf"rank 2 {where}: {y}", table)


# Rank 1 computes, then rests; rank 0 waits for it.
BUSY = """
import time, torch
import bluecomm as bf
bf.init()
bf.barrier()
start = time.monotonic()
if bf.rank() == 1:
    while time.monotonic() < start + 10:
        pass
    bf.allreduce(torch.ones(4), name="x")
    time.sleep(12)
    raise SystemExit(0)
hard = bf.allreduce_nonblocking(torch.ones(4), name="hard", timeout_s=3)
bf.allreduce(torch.ones(4), name="x")
print(f"x after {time.monotonic() - start:.1f}", flush=True)
try:
    hard.wait()
except bf.CommunicationTimeout as error:
    print(f"hard: {error}", flush=True)
start = time.monotonic()
try:
    bf.allreduce(torch.ones(4), name="y")
except bf.CommunicationTimeout as error:
    print(f"y after {time.monotonic() - start:.1f}: {error}", flush=True)
"""


@pytest.mark.slow
def test_a_busy_rank_is_waited_for_and_an_idle_one_is_not(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(BUSY)
    options = ["-np", "2", "-x", "BLUECOMM_OPERATION_TIMEOUT_S=4"]
    with launched(tmp_path, *options, sys.executable, str(path)) as job:
        assert job.wait(50) == 0, job.err
        assert float(job.wait_for(r"x after (\S+)")[1]) >= 9.5
        assert "hard: allreduce 'hard' on rank 0: no data from rank 1 within 3.0 s" in (
            job.out
        )
        failed = job.wait_for(r"y after (\S+): allreduce 'y' on rank 0: (.*)")
        assert 3.5 <= float(failed[1]) <= 10.0
        assert failed[2].startswith("no data from rank 1 within")


def _cross():
    name = "y" if bf.rank() == 1 else "x"
    outcome = outcome_of(lambda: bf.allreduce(torch.ones(2), name=name))
    return outcome, outcome_of(lambda: bf.allreduce(torch.ones(2), name="after"))


@pytest.mark.slow
def test_crossed_blocking_calls_are_named():
    for outcome, after in run_ranks(3, _cross, limit_s=30):
        assert isinstance(outcome.error, MismatchError)
        assert 9.0 < outcome.seconds < 18.0
        assert "blocking calls in crossed order, which can never meet" in outcome.text
        assert "rank 1 is in allreduce 'y' and waits for rank" in outcome.text
        assert "is in allreduce 'x' and waits for rank 1" in outcome.text
        assert "nonblocking forms" in outcome.text
        assert after.error is None
