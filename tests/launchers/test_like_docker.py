"""A container's limits: a small /dev/shm, and system calls that are refused."""

from __future__ import annotations

import platform
import sys

import pytest

from tests.launchers.support import run_launcher
from tests.support.cluster import needs_hosts

pytestmark = pytest.mark.launchers

PROGRAM = """
import ctypes, errno, os, torch
import bluecomm as bf
from tests.launchers.like_docker import REFUSED, SHM_NBYTES

libc = ctypes.CDLL(None, use_errno=True)
for name in ("process_vm_readv", "pidfd_getfd", "io_uring_setup", "perf_event_open"):
    assert libc.syscall(REFUSED[name], 0, 0, 0, 0, 0, 0) == -1
    assert ctypes.get_errno() == errno.EPERM, name
disk = os.statvfs("/dev/shm")
assert disk.f_blocks * disk.f_frsize == SHM_NBYTES

used = []
for transport in ("auto", "tcp"):
    os.environ["BLUECOMM_TRANSPORT"] = transport
    bf.init()
    x = bf.shared_empty(SHM_NBYTES // 4 + 1000)  # on each rank
    x.fill_(bf.rank())
    assert bf.allreduce(x).eq(0.5).all()
    assert bf.neighbor_allreduce(x).eq(0.5).all()
    used += sorted({each.transport for each in bf.stats().neighbors})
    bf.shutdown()
os.write(1, f"{used}\\n".encode())
"""


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="knows the system calls of x86-64 only"
)
def test_docker_s_defaults_are_enough():
    needs_hosts()
    apart = ["unshare", "--mount", "--propagation", "private"]
    limits = [sys.executable, "-m", "tests.launchers.like_docker"]
    bfrun = [sys.executable, "-m", "bfrun", "-np", "2", sys.executable, "-c", PROGRAM]
    done = run_launcher([*apart, *limits, *bfrun])
    assert done.returncode == 0, done.stderr
    expected = [f"[{rank}] ['shm', 'tcp']" for rank in range(2)]
    assert sorted(done.stdout.splitlines()) == expected
