"""A rank dies, and a process group over bluecomm goes on without it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.plain_ranks import run_plain_ranks

pytestmark = pytest.mark.faults

RANKS = 3
PROGRAM = """
import os, signal, sys, types
from pathlib import Path
import torch, torch.distributed as dist
import bluecomm as bf
from tests.support.deadlines import hear, say

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group(
    "bluecomm", init_method=f"file://{folder}/store", rank=rank, world_size=3
)
group = dist.group.WORLD
handles = [None] * 3
dist.all_gather_object(handles, group.get_reconfigure_handle())
dist.barrier()
say(Path(folder), f"past-{rank}")
if rank == 1:
    for other in (0, 2):
        hear(Path(folder), f"past-{other}")
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        dist.all_reduce(torch.ones(1))
except bf.PeerLostError as error:
    assert "rank 1" in str(error), error
options = types.SimpleNamespace(uuid=1, handles=handles[::2], timeout=None)
assert group.reconfigure(options).wait()
tensor = torch.ones(1)
dist.all_reduce(tensor)
print(dist.get_rank(), dist.get_world_size(), tensor.item())
dist.destroy_process_group()
"""


def test_a_group_goes_on_without_a_killed_rank(tmp_path: Path) -> None:
    done = run_plain_ranks(
        RANKS,
        lambda rank: ["-c", PROGRAM, str(rank), str(tmp_path)],
        lambda _: {},
    )
    assert [one.returncode for one in done] == [0, -signal.SIGKILL, 0], done
    assert [one.stdout for one in done] == ["0 2 2.0\n", "", "1 2 2.0\n"]
