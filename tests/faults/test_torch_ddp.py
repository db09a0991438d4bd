"""A rank dies while others train with DistributedDataParallel over bluecomm."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.support.launch import launched

pytestmark = pytest.mark.faults

TRAIN = """
import os, torch, torch.distributed as dist
import bluecomm
dist.init_process_group("bluecomm")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
for step in range(1_000_000):
    model(torch.ones(1, 300)).sum().backward()
    if step == 3:
        print(f"pid {os.getpid()} of {dist.get_rank()} trains", flush=True)
"""


def test_ddp_raises_an_error_that_names_the_killed_rank(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    command = ("-np", "3", sys.executable, str(program))
    with launched(tmp_path, *command, patient=True) as job:
        victim = int(job.wait_for(r"pid (\d+) of 1 trains")[1])
        os.kill(victim, signal.SIGKILL)
        assert job.wait() == 137
        assert job.left() == {}
        who = rf"rank 1 on localhost \(pid {victim}\) was killed by SIGKILL"
        assert re.search(rf"RuntimeError: .*PeerLostError: allreduce .*{who}", job.err)
