"""A rank lives but does not take part: warnings, deadlines, crossed calls."""

from __future__ import annotations

import re
import sys
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.errors import CommunicationTimeout, MismatchError
from tests.support.deadlines import hear, say, wait_until
from tests.support.launch import launched
from tests.support.outcome import outcome_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.faults


def _messages_from(rank):
    (found,) = [each for each in bf.stats().neighbors if each.rank == rank]
    return found.messages_received


def _one_comes_too_late(folder):
    """Rank 2 calls first, then rank 0 with a deadline; rank 1 calls after the error."""
    bf.barrier()
    limit_s = 2.0 if bf.rank() == 0 else None
    if bf.rank() == 0:
        hear(folder, "started")
    elif bf.rank() == 1:
        before = _messages_from(0)
        say(folder, "counted")
        wait_until(lambda: _messages_from(0) >= before + 2, "rank 0 has not given up")
    else:
        hear(folder, "counted")

    def call():
        handle = bf.allreduce_nonblocking(torch.ones(2), name="x", timeout_s=limit_s)
        if bf.rank() == 2:
            say(folder, "started")
        return handle.wait()

    missed = outcome_of(call)
    again = outcome_of(lambda: bf.allreduce(torch.ones(2), name="x"))
    return missed, again


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_deadline_of_a_call(transport, tmp_path):
    outcomes = run_ranks(3, _one_comes_too_late, tmp_path, transport=transport)
    for rank, (missed, again) in enumerate(outcomes):
        assert isinstance(missed.error, CommunicationTimeout)
        assert re.match(
            r"allreduce 'x' on rank 0: no data from rank 1 within 2\.0 s",
            missed.text,
        )
        # The other ranks learned it from rank 0.
        assert rank == 1 or missed.error.peers == (1,)
        assert missed.error.rank == rank
        assert rank > 0 or missed.error.timeout_s == 2.0
        assert rank > 0 or missed.seconds > 1.9
        assert again.error is None


def _one_calls_something_else(other, folder):
    bf.barrier()
    if bf.rank() == other:
        handle = bf.allreduce_nonblocking(torch.ones(2), name="y")
        say(folder, "called")
        handle.wait()
        return None
    hear(folder, "called")
    call = lambda: bf.allreduce(torch.ones(2), name="x", timeout_s=2.0)  # noqa: E731
    outcome = outcome_of(call)
    bf.allreduce(torch.ones(2), name="y")
    return outcome


@pytest.mark.parametrize("other", [0, 1])
def test_the_error_names_what_the_silent_rank_called_instead(other, tmp_path):
    outcome = run_ranks(2, _one_calls_something_else, other, tmp_path)[1 - other]
    assert isinstance(outcome.error, CommunicationTimeout)
    assert "has called allreduce 'y', which this rank has" in outcome.text


def _wait_for_a_handle():
    if bf.rank() == 1:
        bf.barrier()
        return float(bf.allreduce(torch.ones(2), name="x")[0]), None
    handle = bf.allreduce_nonblocking(torch.ones(2), name="x")
    early = outcome_of(lambda: handle.wait(timeout_s=0.2))
    bf.barrier()
    return float(handle.wait()[0]), early


def test_a_wait_that_is_too_short_does_not_end_the_operation():
    (result, early), _ = run_ranks(2, _wait_for_a_handle)
    assert result == 1.0
    assert isinstance(early.error, CommunicationTimeout)
    assert "not finished within 0.2 s; the operation goes on" in early.text
    assert early.error.name == "x"


# The sender's connections carry one tenth of the tensor within the deadline.
PARTIAL = """
import contextlib, os, socket, torch
import bluecomm as bf
bf.init()
tensor = torch.ones(1 << 26)
bf.barrier()
SO_MAX_PACING_RATE = 47
for fd in os.listdir("/proc/self/fd") if bf.rank() == 1 else ():
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(fd))) as one:
        one.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 6 << 20)
bf.barrier()
try:
    bf.broadcast_(tensor, 1, name="x", timeout_s=4 if bf.rank() == 0 else None)
except bf.CommunicationTimeout as error:
    print(f"text: {error}", flush=True)
    raise
"""


def test_the_error_says_how_much_has_arrived(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PARTIAL)
    options = ["-np", "2", "-x", "BLUECOMM_TRANSPORT=tcp"]
    with launched(tmp_path, *options, sys.executable, str(path)) as job:
        text = job.wait_for(r"text: (broadcast 'x' on rank 0: .*)")[1]
        assert re.search(
            r"no data from rank 1 within 4\.0 s "
            r"\(received \d+\.\d of 256\.0 MiB from rank 1\)",
            text,
        )
        assert job.wait() == 1
        assert job.left() == {}


# The first warning comes earlier than for users, once rank 2 has reached its call.
LATE = """
import os, pathlib, time, torch
import bluecomm as bf
from bluecomm.runtime import monitor
monitor._WARN_AFTER_S = (2.0, 60.0, 300.0)
bf.init()
bf.barrier()
if bf.rank() == 2:
    handle = bf.allreduce_nonblocking(torch.ones(4), name="y")
    pathlib.Path("called").touch()
while not os.path.exists("warned" if bf.rank() > 0 else "called"):
    time.sleep(0.05)
bf.allreduce(torch.ones(4), name="x")
if bf.rank() < 2:
    handle = bf.allreduce_nonblocking(torch.ones(4), name="y")
handle.wait()
print("done")
"""


def test_the_warning_says_what_each_rank_does(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(LATE)
    with launched(tmp_path, "-np", "3", sys.executable, str(path)) as job:
        job.wait_for(r"bluecomm WARNING: allreduce 'x' on rank 0")
        job.wait_for(r"rank 2 on localhost \(pid \d+, running, CPU")
        (tmp_path / "warned").touch()
        assert job.wait() == 0
        assert job.out.count("done") == 3
        table = job.err[job.err.index("bluecomm WARNING: allreduce 'x'") :]
        where = r"on localhost \(pid \d+, running, CPU last used \d+ s ago\)"
        waits = r"has waited \d+ s for ranks 1-2 \(received 0 of 32 bytes\)"
        assert re.match(rf"bluecomm WARNING: allreduce 'x' on rank 0 {waits}", table)
        x = r"allreduce 'x' for \d+ s \(waits for ranks 1-2\)"
        y = r"allreduce 'y' for \d+ s \(waits for ranks 0-1\)"
        assert re.search(rf"rank 0 {where}: {x}", table)
        assert re.search(rf"rank 1 {where}: in no operation", table)
        assert re.search(rf"rank 2 {where}: {y}", table)


# Rank 1 computes, then sleeps; rank 0 waits for it.
BUSY = """
import os, pathlib, time, torch
import bluecomm as bf
bf.init()
bf.barrier()
start = time.monotonic()
if bf.rank() == 1:
    while time.monotonic() < start + 10:
        pass
    bf.allreduce(torch.ones(4), name="x")
    while not os.path.exists("missed"):
        time.sleep(0.5)
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
pathlib.Path("missed").touch()
"""


@pytest.mark.slow
def test_a_busy_rank_is_waited_for_and_an_idle_one_is_not(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(BUSY)
    options = ["-np", "2", "-x", "BLUECOMM_OPERATION_TIMEOUT_S=6"]
    with launched(tmp_path, *options, sys.executable, str(path)) as job:
        assert job.wait() == 0, job.err
        assert float(job.wait_for(r"x after (\S+)")[1]) > 6.0
        assert "hard: allreduce 'hard' on rank 0: no data from rank 1 within 3.0 s" in (
            job.out
        )
        failed = job.wait_for(r"y after (\S+): allreduce 'y' on rank 0: (.*)")
        assert float(failed[1]) > 5.5
        assert failed[2].startswith("no data from rank 1 within")


# The ranks report stalls earlier than by default, and again if one was late.
EARLY = mock.patch(
    "bluecomm.runtime.monitor._WARN_AFTER_S", (2.0, 4.0, 8.0, 20.0, 60.0)
)
SETTLED = mock.patch("bluecomm.runtime.stall._SETTLED_S", 1.0)


def _cross():
    with EARLY, SETTLED:
        name = "y" if bf.rank() == 1 else "x"
        outcome = outcome_of(lambda: bf.allreduce(torch.ones(2), name=name))
        after = outcome_of(lambda: bf.allreduce(torch.ones(2), name="after"))
    return outcome, after


def _call_in_two_sets():
    pair = bf.ProcessSet([0, 1])
    with EARLY, SETTLED:
        members = pair if bf.rank() == 0 else None
        outcome = outcome_of(
            lambda: bf.allreduce(torch.ones(2), name="x", process_set=members)
        )
        after = outcome_of(lambda: bf.allreduce(torch.ones(2), name="after"))
    return outcome, after


def test_calls_of_one_name_in_two_process_sets_are_named():
    for outcome, after in run_ranks(3, _call_in_two_sets):
        assert isinstance(outcome.error, MismatchError)
        assert "calls of one name by different sets of ranks" in outcome.text
        assert "Pass the same process_set" in outcome.text
        assert after.error is None


def test_crossed_blocking_calls_are_named():
    for outcome, after in run_ranks(3, _cross):
        assert isinstance(outcome.error, MismatchError)
        assert "blocking calls in crossed order, which can never meet" in outcome.text
        assert "rank 1 is in allreduce 'y' and waits for rank" in outcome.text
        assert "is in allreduce 'x' and waits for rank 1" in outcome.text
        assert "nonblocking forms" in outcome.text
        assert after.error is None
