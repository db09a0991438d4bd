"""A container's small /dev/shm: shared memory is taken from memfds, not from there."""

from __future__ import annotations

import sys

import pytest

from tests.launchers.support import run_launcher
from tests.support.cluster import needs_hosts

pytestmark = pytest.mark.launchers

PROGRAM = """
import os, torch
import bluecomm as bf

bf.init()
assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 1 << 20
x = bf.shared_empty(4 << 20)  # 16 MiB of shared memory on each rank
x.fill_(bf.rank())
assert bf.allreduce(x).eq(1).all()
assert bf.neighbor_allreduce(x.clone()).shape == x.shape
used = {each.transport for each in bf.stats().neighbors}
os.write(1, f"{sorted(used)}\\n".encode())
"""


def test_a_dev_shm_of_one_mebibyte_is_enough():
    needs_hosts()
    script = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    apart = ["unshare", "--mount", "--propagation", "private"]
    bfrun = [sys.executable, "-m", "bfrun", "-np", "3", sys.executable, "-c", PROGRAM]
    done = run_launcher([*apart, "sh", "-c", script, "sh", *bfrun])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] ['shm']" for r in range(3)]
