"""A rank dies: its mutex is passed on, its values stay, and puts to it fail.

With ``--on-failure continue`` nothing fails, and the windows go on.
"""

from __future__ import annotations

import os
import re
import signal
import sys

import pytest

from tests.support.launch import launched, python

pytestmark = pytest.mark.faults

HOLDER = """
import os, time, torch
import bluecomm as bf
from tests.support.exit_together import exit_together
bf.init()
bf.set_topology(bf.FullyConnectedGraph(bf.size()))
x = torch.full((5000,), float(bf.rank()))
bf.win_create(x, "x")
bf.win_put(x, "x")
bf.barrier()
if bf.rank() == 2:
    with bf.win_mutex("x", ranks=[0]):
        bf.barrier()
        print(f"victim {os.getpid()}", flush=True)
        time.sleep(3000)
bf.barrier()
print("waiting", flush=True)
with bf.win_mutex("x", ranks=[0]):
    print("mutex passed on", flush=True)
while True:
    try:
        bf.win_put(x, "x")
    except bf.PeerLostError as error:
        assert error.peers == (2,), error.peers
        print(f"error {error}", flush=True)
        break
    time.sleep(0.01)
try:
    bf.win_get("x", {2: 1.0})
except bf.PeerLostError as error:
    print("get raises too", flush=True)
print("mean", float(bf.win_update("x", clone=True)[0]), flush=True)
exit_together(9, bf.rank(), [0, 1])
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_killed_rank_leaves_its_mutex_and_its_values(transport, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(HOLDER)
    options = ["-np", "3", "-x", f"BLUECOMM_TRANSPORT={transport}"]
    command = [sys.executable, str(program)]
    with launched(tmp_path, *options, *command, patient=True) as job:
        victim = int(job.wait_for(r"victim (\d+)")[1])
        for rank in (0, 1):
            job.wait_for(rf"\[{rank}\] waiting")
        assert "mutex passed on" not in job.out
        os.kill(victim, signal.SIGKILL)
        assert job.wait() == 137
        assert job.left() == {}
        who = rf"rank 2 on localhost \(pid {victim}\) was killed by SIGKILL"
        for rank in (0, 1):
            for said in (
                "mutex passed on",
                rf"error win_put 'x' on rank {rank}: {who}",
                "get raises too",
                r"mean 1\.0",
            ):
                assert re.search(rf"\[{rank}\] {said}", job.out), job.out + job.err


# Rank 2 has put 3, and holds the mutex of rank 0.
SURVIVORS = """
import os, sys, time, torch
import bluecomm as bf
bf.init()
rank = bf.rank()
bf.set_topology(bf.FullyConnectedGraph(bf.size()))
x = torch.full((5000,), float(rank + 1))
bf.win_create(x, "x")
bf.win_put(x, "x")
bf.barrier()
if rank == 2:
    with bf.win_mutex("x", ranks=[0]):
        bf.barrier()
        print(f"victim {os.getpid()}", flush=True)
        time.sleep(3000)
bf.barrier()
print("waiting", flush=True)
with bf.win_mutex("x", ranks=[0]):
    print("mutex passed on", flush=True)
while 2 in bf.elastic.members():
    time.sleep(0.01)
bf.reset_stats()
bf.win_put(x, "x")
bf.win_accumulate(x, "x", dst_weights={2: 1.0})
bf.win_get("x", {2: 1.0})
with bf.win_mutex("x", ranks=[2]):
    pass
print("dropped", bf.stats().dropped, flush=True)
bf.barrier()
print("once", float(bf.win_update("x")[0]), flush=True)
bf.barrier()
print("own", round(float(bf.win_update("x")[-1]), 3), flush=True)
print("replaced", bf.stats().replaced, flush=True)
bf.win_free("x")
bf.win_create(x.fill_(rank + 1.0), "y", zero_init=True)
bf.win_accumulate(x, "y")
bf.barrier()
print("new", float(bf.win_update_then_collect("y")[0]), flush=True)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_windows_go_on_without_a_killed_rank(transport, tmp_path):
    options = ["--on-failure", "continue", "-np", "3"]
    options += ["-x", f"BLUECOMM_TRANSPORT={transport}"]
    with launched(tmp_path, *options, *python(SURVIVORS), patient=True) as job:
        victim = int(job.wait_for(r"victim (\d+)")[1])
        for rank in (0, 1):
            job.wait_for(rf"\[{rank}\] waiting")
        assert "mutex passed on" not in job.out
        os.kill(victim, signal.SIGKILL)
        assert job.wait() == 0, job.out + job.err
        assert job.left() == {}
        for rank, own in ((0, "2.0"), (1, "1.667")):
            said = re.findall(rf"^\[{rank}\] (.*)$", job.out, re.MULTILINE)
            assert said == [
                "waiting",
                "mutex passed on",
                # A put, an accumulate, a get and a mutex.
                "dropped 4",
                "once 2.0",
                f"own {own}",
                "replaced 1",
                "new 3.0",
            ]


# Rank 1 leaves although it has a window; the others neither wait nor fail.
LEAVING = """
import time, torch
import bluecomm as bf
bf.init()
x = torch.full((5000,), float(bf.rank()))
bf.win_create(x, "x")
bf.barrier()
if bf.rank() != 1:
    while 1 in bf.elastic.members():
        bf.win_put(x, "x")
        bf.win_update("x")
    with bf.win_mutex("x", ranks=[1]):
        bf.barrier()
    print("alone", bf.win_put(x, "x"), flush=True)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_with_windows_may_leave(transport, tmp_path):
    options = ["--on-failure", "continue", "-np", "3"]
    environ = {"BLUECOMM_TRANSPORT": transport}
    with launched(tmp_path, *options, *python(LEAVING), environ=environ) as job:
        assert job.wait() == 0, job.out + job.err
        assert job.out.count("alone True") == 2, job.out + job.err
