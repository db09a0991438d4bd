"""A rank dies: its mutex is passed on, its values stay, and puts to it fail."""

from __future__ import annotations

import os
import re
import signal
import sys

import pytest

from tests.support.launch import launched

pytestmark = pytest.mark.faults

HOLDER = """
import os, sys, time, torch
import bluecomm as bf
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
sys.exit(9)
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
