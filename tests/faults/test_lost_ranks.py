"""A rank ends while others need it: which rank their errors name, and how soon."""

from __future__ import annotations

import json
import os
import re
import signal
import sys

import pytest

from tests.support.launch import launched

pytestmark = pytest.mark.faults

# Starts one operation of each kind on ranks 0 and 1; rank 2 takes no part.
EVERY_KIND = """
import json, os, time, torch
import bluecomm as bf
from tests.support.exit_together import exit_together
bf.init()
small, large = torch.ones(6, 2), torch.ones(1 << 20)
bf.barrier()
if bf.rank() == 2:
    print(f"victim {os.getpid()}", flush=True)
    time.sleep(1000)
calls = {
    "allreduce": lambda: bf.allreduce_nonblocking(small, name="a"),
    "allreduce_large": lambda: bf.allreduce_nonblocking_(large, name="b"),
    "broadcast": lambda: bf.broadcast_nonblocking(small, 2, name="c"),
    "allgather": lambda: bf.allgather_nonblocking(small, name="d"),
    "alltoall": lambda: bf.alltoall_nonblocking(small, name="e"),
    "reducescatter": lambda: bf.reducescatter_nonblocking(small, name="f"),
    "neighbor_allreduce": lambda: bf.neighbor_allreduce_nonblocking(small, name="g"),
    "neighbor_allgather": lambda: bf.neighbor_allgather_nonblocking(small, name="h"),
    "hierarchical": lambda: bf.hierarchical_neighbor_allreduce_nonblocking(
        small, name="i"),
    "pair_gossip": lambda: bf.pair_gossip_nonblocking(small, 2, name="j"),
    "reduce": lambda: bf.reduce_nonblocking(small, 2, name="k"),
    "gather": lambda: bf.gather_nonblocking(small, 2, name="l"),
    "scatter": lambda: bf.scatter_nonblocking(None, 2, name="m"),
    "send": lambda: bf.send_nonblocking(large, 2, tag=1),
    "recv": lambda: bf.recv_nonblocking(torch.ones(2), 2, tag=2),
}
handles = {kind: call() for kind, call in calls.items()}
errors = {}
print("waiting", flush=True)
for kind, wait in [*((k, h.wait) for k, h in handles.items()), ("barrier", bf.barrier)]:
    try:
        wait()
        errors[kind] = "no error"
    except bf.PeerLostError as error:
        errors[kind] = str(error)
        assert error.peers == (2,), error.peers
print("errors " + json.dumps(errors), flush=True)
assert len(set(errors.values())) == len(errors)
exit_together(9, bf.rank(), [0, 1])
"""

# The ranks average a large tensor until somebody stops them.
LOOP = """
import os, torch
import bluecomm as bf
bf.init()
make = bf.shared_empty if os.environ["SHARED"] == "1" else torch.empty
tensor = make(1 << 22)
tensor.fill_(1)
for _ in range(5):
    bf.allreduce_(tensor, name="x")
print(f"pid {os.getpid()} of {bf.rank()} up", flush=True)
while True:
    bf.allreduce_(tensor, name="x")
"""


def script(folder, text):
    """Write a program and return the command that runs it."""
    path = folder / "program.py"
    path.write_text(text)
    return (sys.executable, str(path))


def with_transport(transport):
    return () if transport is None else ("-x", f"BLUECOMM_TRANSPORT={transport}")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_kind_of_operation_names_the_killed_rank(transport, tmp_path):
    command = script(tmp_path, EVERY_KIND)
    options = ["-np", "3", *with_transport(transport)]
    with launched(tmp_path, *options, *command, patient=True) as job:
        victim = int(job.wait_for(r"victim (\d+)")[1])
        for rank in (0, 1):
            job.wait_for(rf"\[{rank}\] waiting")
        os.kill(victim, signal.SIGKILL)
        assert job.wait() == 137
        assert job.left() == {}
        who = rf"rank 2 on localhost \(pid {victim}\) was killed by SIGKILL"
        for rank in (0, 1):
            said = re.search(rf"\[{rank}\] errors (.*)", job.out)
            assert said, job.out + job.err
            for kind, text in json.loads(said[1]).items():
                kind = kind.removesuffix("_large")
                # A rank that calls later may learn it from one that called before.
                assert re.fullmatch(rf"{kind}\S* '.*' on rank [01]: {who}", text)
        last = job.err.splitlines()[-1]
        assert re.search(who, last)
        assert "later failures: ranks 0-1: exit 9" in job.err


@pytest.mark.parametrize(
    ("transport", "shared"), [("shm", True), ("shm", False), ("tcp", False)]
)
def test_a_rank_killed_in_the_middle_of_a_transfer(transport, shared, tmp_path):
    command = script(tmp_path, LOOP)
    environment = {"SHARED": str(int(shared)), "BLUECOMM_TRANSPORT": transport}
    with launched(
        tmp_path, "-np", "3", *command, environ=environment, patient=True
    ) as job:
        victim = int(job.wait_for(r"pid (\d+) of 1 up")[1])
        os.kill(victim, signal.SIGKILL)
        assert job.wait() == 137
        assert job.left() == {}
        who = rf"rank 1 on localhost \(pid {victim}\) was killed by SIGKILL"
        pattern = rf"PeerLostError: allreduce 'x' on rank [02]: {who}"
        assert re.search(pattern, job.err)
        assert re.search(who, job.err.splitlines()[-1])


# After its goodbye, a process may take a while to exit on a busy machine.
GOODBYE = r"has ended its communication"
ENDINGS = {
    "return": (
        "pass",
        rf"rank 1 on localhost \(pid \d+\) (had finished \(exit 0\)|{GOODBYE})",
    ),
    "sys.exit(3)": (
        "sys.exit(3)",
        r"rank 1 on localhost \(pid \d+\) called sys.exit\(3\)",
    ),
    "exception": (
        "raise KeyError('no luck')",
        r"rank 1 on localhost \(pid \d+\) raised KeyError: 'no luck'",
    ),
    "os._exit(0)": (
        "os._exit(0)",
        r"rank 1 on localhost \(pid \d+\) had finished \(exit 0\)",
    ),
    "os._exit(4)": (
        "os._exit(4)",
        r"rank 1 on localhost \(pid \d+\) ended with exit code 4",
    ),
    "abort": ("os.abort()", r"rank 1 on localhost \(pid \d+\) was killed by SIGABRT"),
}
ENDING = """
import os, sys, torch
import bluecomm as bf
bf.init()
print("sum", float(bf.allreduce(torch.ones(2), op=bf.Sum, name="first")[0]))
if bf.rank() == 1:
    {ending}
else:
    bf.allreduce(torch.ones(2), name="second")
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_rank_that_ends_while_others_need_it(ending, transport, tmp_path):
    statement, who = ENDINGS[ending]
    command = script(tmp_path, ENDING.format(ending=statement))
    options = ["-np", "2", *with_transport(transport)]
    with launched(tmp_path, *options, *command, patient=True) as job:
        code = job.wait()
        assert job.left() == {}
        assert job.out.count("sum 2.0") == 2
        error = rf"PeerLostError: allreduce 'second' on rank 0: {who}"
        assert re.search(error, job.err), job.err
        expected = {"sys.exit(3)": 3, "os._exit(4)": 4, "abort": 134}
        assert code == expected.get(ending, 1)
        last = job.err.splitlines()[-1]
        assert "job failed: rank 1 on localhost" in last
        if ending in ("return", "os._exit(0)"):
            assert "exited with status 0 while rank 0 still needed it" in last


# Rank 1 waits in an exit handler until its peers know of its exception.
TOLD = """
import atexit, os, sys, threading, torch
from pathlib import Path
import bluecomm as bf
from tests.support.deadlines import hear, say

def hear_others(word):
    for rank in (0, 2):
        hear(Path(), f"{word}-{rank}")

def wait_for_peers():
    hear_others("told")
    print("peers know", flush=True)

if os.environ["RANK"] == "1":
    atexit.register(wait_for_peers)
bf.init()
if bf.rank() == 2:
    thread = threading.Thread(target=lambda: [].pop(), name="helper")
    thread.start()
    thread.join()
    try:
        sys.exit(5)
    except SystemExit:
        pass
bf.barrier()
say(Path(), f"past-{bf.rank()}")
if bf.rank() == 1:
    hear_others("past")
    raise KeyError("no luck")
try:
    bf.allreduce(torch.ones(2), name="x")
except bf.PeerLostError as error:
    print("told:", error, flush=True)
    say(Path(), f"told-{bf.rank()}")
    raise
"""


def test_peers_learn_of_an_exception_before_the_process_ends(tmp_path):
    with launched(tmp_path, "-np", "3", *script(tmp_path, TOLD), patient=True) as job:
        assert job.wait() == 1
        assert job.left() == {}
        assert "[1] peers know" in job.out
        who = r"rank 1 on localhost \(pid \d+\) raised KeyError: 'no luck'"
        for rank in (0, 2):
            told = rf"\[{rank}\] told: allreduce 'x' on rank [02]: {who}"
            assert re.search(told, job.out)
        assert re.search(rf"job failed: {who}; 0 proc", job.err.splitlines()[-1])
        assert "later failures: ranks 0, 2: PeerLostError" in job.err
        warning = (
            r"rank 2 on localhost \(pid \d+\) still runs, but its thread 'helper' "
            "ended: IndexError: pop from empty list"
        )
        assert re.search(rf"^bfrun: {warning}", job.err, re.MULTILINE)
        assert re.search(rf"\[0\] bluecomm WARNING: {warning}", job.err)


INTERRUPTED = """
import os, signal, time
import bluecomm as bf
bf.init()
bf.barrier()
if bf.rank() == 1:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1000)
bf.barrier()
"""
IN_INIT = """
import os
import bluecomm as bf
from bluecomm.topology import RingGraph

def topology(size):
    raise ValueError("no graph")

bf.init(topology if os.environ["RANK"] == "1" else RingGraph)
"""


@pytest.mark.parametrize(
    ("text", "code", "deed", "error"),
    [
        (INTERRUPTED, 130, "raised KeyboardInterrupt", "PeerLostError: barrier"),
        (IN_INIT, 1, "raised ValueError: no graph", "CommunicationTimeout: init"),
    ],
)
def test_ranks_that_end_in_other_ways_are_named(text, code, deed, error, tmp_path):
    with launched(tmp_path, "-np", "2", *script(tmp_path, text), patient=True) as job:
        assert job.wait() == code
        assert job.left() == {}
        who = rf"rank 1 on localhost \(pid \d+\) {deed}"
        assert re.search(rf"\[0\] .*{error}\b.*{who}", job.err), job.err
        assert re.search(f"job failed: {who}", job.err.splitlines()[-1])


EARLY = """
import time, torch
import bluecomm as bf
bf.init()
handle = bf.allreduce_nonblocking(torch.ones(1 << 20), name="x")
if bf.rank() == 1:
    handle.wait()
else:
    time.sleep(3)
    print("sum", float(handle.wait().sum()))
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_results_of_before_a_rank_ended_stay_valid(transport, tmp_path):
    options = ["-np", "2", *with_transport(transport)]
    with launched(tmp_path, *options, *script(tmp_path, EARLY)) as job:
        assert job.wait() == 0
        assert f"sum {1 << 20}.0" in job.out
        assert "rror" not in job.err


STOPPED = """
import os, signal, time, torch
import bluecomm as bf
bf.init()
bf.barrier()
if bf.rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
start = time.monotonic()
try:
    bf.allreduce(torch.ones(4), name="x")
except bf.PeerLostError as error:
    print(f"after {time.monotonic() - start:.1f} s: {error}", flush=True)
    raise
"""


@pytest.mark.slow
def test_a_stopped_rank_is_warned_of_and_then_lost(tmp_path):
    options = ["-np", "2", "--failure-timeout", "13"]
    with launched(tmp_path, *options, *script(tmp_path, STOPPED)) as job:
        warning = r"\[0\] bluecomm WARNING: rank 1 on localhost \(pid (\d+)\) has been"
        pid = job.wait_for(warning)[1]
        assert job.wait() == 1
        assert job.left() == {}
        failed = re.search(r"\[0\] after (\S+) s: (.*)", job.out)
        assert failed, job.out + job.err
        assert float(failed[1]) >= 5.0  # by the agent, not by its closed connections
        assert failed[2].startswith(
            f"allreduce 'x' on rank 0: rank 1 on localhost (pid {pid}) was stopped"
        )
        assert "was stopped (state T)" in job.err.splitlines()[-1]


# Rank 1 is an ordinary rank of the first optimizer, and the server of the second.
QUORUMS = """
import os, signal, torch
import bluecomm as bf
from tests.support.exit_together import exit_together
bf.init()
trainings = {}
for name, ranks in (("follower", [0, 1, 2]), ("server", [1, 2])):
    process_set = bf.ProcessSet(ranks)
    if bf.rank() in ranks:
        model = torch.nn.Linear(3, 1)
        trainings[name] = model, bf.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01),
            model,
            algorithm="quorum_diloco",
            num_steps_per_communication=1,
            process_set=process_set,
        )

def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(3)).sum().backward()
    optimizer.step()

for _ in range(3):
    for training in trainings.values():
        step(*training)
bf.barrier()
if bf.rank() == 1:
    print(f"victim {os.getpid()}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
for name, training in trainings.items():
    try:
        while True:
            step(*training)
    except Exception as error:
        print(f"lost {name}: {type(error).__name__}: {error}", flush=True)
exit_together(9, bf.rank(), [0, 2])
"""


def test_a_quorum_ends_with_an_error_on_all_ranks(tmp_path):
    command = script(tmp_path, QUORUMS)
    with launched(tmp_path, "-np", "3", *command, patient=True) as job:
        assert job.wait() == 137
        assert job.left() == {}
        victim = job.wait_for(r"victim (\d+)")[1]
        who = rf"rank 1 on localhost \(pid {victim}\) was killed by SIGKILL"
        remedy = (
            rf"rank 0 makes the outer steps .*{who}.* Start again from a checkpoint"
        )
        for rank, name, error in (
            (0, "follower", rf"PeerLostError: .*{who}"),
            (2, "follower", rf"RuntimeError: .*{remedy}"),
            (2, "server", rf"PeerLostError: .*{who}"),
        ):
            assert re.search(rf"\[{rank}\] lost {name}: {error}", job.out), job.out
