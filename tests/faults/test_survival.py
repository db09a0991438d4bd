"""``bfrun --on-failure continue``: the others train on when ranks are lost."""

from __future__ import annotations

import re

import pytest

import bluecomm as bf
from tests.support.fault_matrix import PACKED, covered, run_scenario
from tests.support.launch import launched, python
from tests.support.survival_of_collectives import (
    check_collectives,
    collectives_command,
)

pytestmark = pytest.mark.faults


# Killed ranks are noticed in different ways over the two transports, so they are killed
# over both. `make survive` runs all pairs.
OVER_BOTH = ("half", "in-turn")
OVER_ONE = {"stop": "tcp", "late": "shm", "endings": "tcp"}


@pytest.mark.parametrize(
    ("scenario", "transport"),
    [
        (scenario, transport)
        for scenario in PACKED
        for transport in ("shm", "tcp")
        if scenario.name in OVER_BOTH or OVER_ONE[scenario.name] == transport
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_the_others_train_on(scenario, transport, tmp_path):
    run_scenario(scenario, covered(), tmp_path, transport=transport)


@pytest.mark.parametrize(
    ("transport", "size", "victims", "when"),
    [
        ("shm", 4, [2], "uncommitted"),
        ("tcp", 4, [0], "released"),
        ("auto", 8, [1, 3, 4, 6], "before"),
        ("auto", 4, [1, 3], "repeated"),
    ],
    ids=["one", "rank 0", "half", "twice"],
)
def test_collectives_are_released_together(transport, size, victims, when, tmp_path):
    command = collectives_command(victims, when)
    environ = {"BLUECOMM_TRANSPORT": transport, "OMP_NUM_THREADS": "1"}
    options = ["--on-failure", "continue", "-np", str(size)]
    with launched(tmp_path, *options, *command, environ=environ) as job:
        assert job.wait() == 0, job.out + job.err
        check_collectives(job, size, victims)
        assert job.left() == {}


# Rank 0 goes while rank 1 is in each call, and rank 2 makes the call only later.
NOT_REPEATED = """
import os, signal, threading, time, torch
import bluecomm as bf
bf.init()
rank = bf.rank()
def sums(name, numel):
    tensor = torch.full((numel,), float(1 << rank))
    try:
        return bf.allreduce_(tensor, average=False, name=name)[-1].item()
    except bf.PeerLostError as error:
        return f"{type(error).__name__}: {error}"
print(sums("first", 1_000_000), flush=True)
if rank == 0:
    bf.recv(torch.zeros(1), 1)
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1:
    handle = bf.allreduce_nonblocking_(torch.ones(1_000_000), average=False, name="big")
    bf.send(torch.zeros(1), 0)
    try:
        handle.wait()
    except bf.PeerLostError as error:
        print(f"PeerLostError: {error}", flush=True)
if rank == 2:
    while not any(event.kind == "epoch" for event in bf.elastic.events()):
        time.sleep(0.01)
    print(sums("big", 1_000_000), flush=True)
print(sums("small", 10), flush=True)
try:
    bf.broadcast(torch.ones(1), 0)
except bf.PeerLostError as error:
    print(f"PeerLostError: {error}", flush=True)
print(sums("big", 1_000_000), flush=True)
"""


def test_what_cannot_be_repeated_raises_on_all_ranks(tmp_path):
    options = ["--on-failure", "continue", "-np", "3"]
    with launched(tmp_path, *options, *python(NOT_REPEATED)) as job:
        assert job.wait() == 0, job.out + job.err
        for rank in (1, 2):
            said = re.findall(rf"^\[{rank}\] (.*)$", job.out, re.MULTILINE)
            assert said[0] == "7.0", job.out
            assert "because it has overwritten its input; gone: rank 0" in said[1]
            assert said[2] == "6.0", job.out
            assert "because its root, rank 0, is lost" in said[3]
            assert said[4] == "6.0", job.out


# One rank after the other is late in its own way, for as long as the others would need
# to exclude one that is stopped several times.
LATE = """
import ctypes, time, torch
import bluecomm as bf
bf.init()
x = torch.full((3,), float(bf.rank()))

def hold_the_gil(seconds):
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))

def suspend(seconds):
    bf.suspend()
    time.sleep(seconds)
    bf.resume()

for rank, is_late in enumerate([time.sleep, hold_the_gil, suspend]):
    if rank == bf.rank():
        is_late(3.0)
    x = bf.neighbor_allreduce(x)
bf.barrier()
print("events:", bf.elastic.events(), bf.elastic.members(), flush=True)
bf.barrier()
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_is_only_late_is_not_excluded(transport, tmp_path):
    options = ["--on-failure", "continue", "-np", "3"]
    environ = {"BLUECOMM_TRANSPORT": transport}
    with launched(tmp_path, *options, *python(LATE), environ=environ) as job:
        assert job.wait() == 0, job.out + job.err
        assert job.out.count("events: [] [0, 1, 2]") == 3, job.out + job.err
        assert "goes on" not in job.err


# Each rank but the first raises the same error, with other numbers.
SAME_ERROR = """
import bluecomm as bf
bf.init()
if bf.rank() > 0:
    raise ValueError(f"loss is NaN at step {7 * bf.rank()}")
while True:
    bf.neighbor_allreduce(__import__("torch").ones(3))
"""


def test_the_same_error_on_two_ranks_ends_the_job(tmp_path):
    options = ["--on-failure", "continue", "-np", "4"]
    with launched(tmp_path, *options, *python(SAME_ERROR)) as job:
        assert job.wait() == 1
        assert re.search(r"job failed: rank [123] .* raised ValueError", job.err)
        assert job.left() == {}


# Calls that are not covered raise on all ranks, before any rank is lost.
REFUSED = """
import torch
import bluecomm as bf
bf.init()
parameter = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([parameter], lr=0.1)

def distributed(algorithm, **options):
    bf.DistributedOptimizer(optimizer, algorithm=algorithm, **options)

for make in (
    lambda: distributed("hierarchical_neighbor_allreduce"),
    lambda: distributed("quorum_diloco"),
    lambda: distributed("neighbor_allreduce", uneven_inputs=True),
    lambda: bf.join(),
):
    try:
        make()
    except Exception as error:
        print(f"refused: {error}", flush=True)
"""


def test_what_is_not_covered_is_refused_by_name(tmp_path):
    options = ["--on-failure", "continue", "-np", "2"]
    with launched(tmp_path, *options, *python(REFUSED)) as job:
        assert job.wait() == 0, job.out + job.err
        for rank in (0, 1):
            said = re.findall(rf"^\[{rank}\] refused: (.*)$", job.out, re.MULTILINE)
            assert len(said) == 4, job.out + job.err
            names = ("hierarchical_neighbor_allreduce", "quorum_diloco")
            for name, text in zip(names, said, strict=False):
                assert f"does not cover the algorithm {name} yet; use one of" in text
            assert "uneven_inputs=True needs all ranks" in said[2]
            assert "join: ranks without data cannot be used with" in said[3]


# Rank 0 makes no call, so that of rank 1 is open when rank 1 frees the set.
FREED = """
import torch
import bluecomm as bf
bf.init()
both = bf.ProcessSet([0, 1])
if bf.rank() == 1:
    handle = bf.allreduce_nonblocking(torch.ones(3), process_set=both)
    both.free()
    try:
        handle.wait()
    except bf.ShutdownError as error:
        print(f"cut: {error}", flush=True)
bf.barrier()
"""


def test_calls_end_when_their_process_set_is_freed(tmp_path):
    options = ["--on-failure", "continue", "-np", "2"]
    with launched(tmp_path, *options, *python(FREED)) as job:
        assert job.wait() == 0, job.out + job.err
        pattern = r"^\[1\] cut: .*this rank has freed the process set"
        assert re.search(pattern, job.out, re.MULTILINE), job.out + job.err


def test_every_covered_algorithm_is_tested():
    assert {*covered(), "local"} < set(bf.algorithm_names())


def test_a_job_ends_when_too_few_ranks_are_left(tmp_path):
    body = """
import os, signal, time
import bluecomm as bf
bf.init()
bf.barrier()
if bf.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1000)
"""
    options = ["--on-failure", "continue", "--min-np", "3", "--elastic-timeout", "5"]
    # Within it, the agent reports the signal, of which the other ranks know nothing.
    with launched(tmp_path, *options, "-np", "3", *python(body)) as job:
        assert job.wait() == 137, job.out + job.err
        few = "2 of 3 ranks are left, fewer than --min-np 3"
        assert f"{few}; the job ends if that lasts for 5 s" in job.err
        assert f"{few}, for 5 s; ending the other ranks" in job.err
        assert "job failed: rank 1" in job.err
        assert job.left() == {}
