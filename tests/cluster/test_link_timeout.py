"""Tests jobs whose network between hosts is cut, and heals in time or too late."""

from __future__ import annotations

import re
import socket
import sys
import time

import pytest

from tests.support.cluster import ClusterHost
from tests.support.deadlines import wait_until
from tests.support.launch import launched

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

CUT_S = 3.0
# Half of the default limit.
LONG_CUT_S = 15.0
TCP_RTO_MAX_MS = 44  # <linux/tcp.h>, Linux 6.15

# The ranks exchange tensors until the file STOP exists, and print when they have.
BUSY = """
import os
import time
import torch
import bluecomm as bf

bf.init()
x = torch.ones(1 << 18)
said = 0.0
while not bf.allreduce(torch.tensor(os.path.exists("STOP")), op=bf.Max):
    assert bf.allreduce(x, average=False).eq(bf.size()).all()
    if time.monotonic() - said > 0.2:
        said = time.monotonic()
        print(f"at {said:.3f}", flush=True)
print("whole", flush=True)
bf.shutdown()
"""

# The ranks use their link once, and then wait for the file.
IDLE = """
import os
import time
import torch
import bluecomm as bf

bf.init()
bf.allreduce(torch.ones(1))
print(f"at {time.monotonic():.3f}", flush=True)
while not os.path.exists("STOP"):
    time.sleep(0.1)
assert bf.allreduce(torch.ones(1 << 18)).eq(1).all()
print("whole", flush=True)
bf.shutdown()
"""


def job_of(cluster, folder, program: str, *more: str):
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:1,node2:1", *more]
    folder.mkdir()
    program = program.replace("STOP", str(folder.parent / "stop"))
    return launched(folder, *options, sys.executable, "-c", program)


def goes_on_after(job, moment: float) -> None:
    """Wait until the ranks of a busy job have exchanged tensors after ``moment``."""
    wait_until(
        lambda: float(re.findall(r"at ([\d.]+)", job.out)[-1]) > moment,
        lambda: f"nothing after the cut: {job.err}",
    )


def test_links_that_heal_go_on(cluster, tmp_path):
    # A busy machine needs seconds to restore the link, and to send again.
    options = ("--link-timeout", "12", "--encrypt")
    with (
        job_of(cluster, tmp_path / "busy", BUSY, *options) as busy,
        job_of(cluster, tmp_path / "idle", IDLE, *options) as idle,
    ):
        for job in (busy, idle):
            job.wait_for(r"at \d")
        cluster.hosts[1].fall_silent()
        time.sleep(CUT_S)
        cluster.hosts[1].restore_link()
        goes_on_after(busy, time.monotonic())
        (tmp_path / "stop").touch()
        for job in (busy, idle):
            assert job.wait() == 0, job.err
            assert job.out.count("whole") == 2


def kernel_limits_pauses() -> bool:
    """Return whether the kernel knows ``TCP_RTO_MAX_MS``."""
    with socket.socket() as probe:
        try:
            probe.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
        except OSError:
            return False
    return True


def pauses_ms(host: ClusterHost, other: ClusterHost) -> list[int]:
    """Return the pause before the next retransmission of each silent connection."""
    text = host.run("ss", "-tinH", "dst", other.address)
    return [int(found) for found in re.findall(r"\brto:(\d+) backoff:[1-9]", text)]


def test_a_cut_of_15_s_is_survived(cluster, tmp_path):
    """Only the path of the data is cut, and ``--link-timeout`` has its default."""
    first, second = cluster.hosts[:2]
    with job_of(cluster, tmp_path / "job", BUSY) as job:
        job.wait_for(r"at \d")
        first.cut_path_to(second)
        second.cut_path_to(first)
        time.sleep(LONG_CUT_S)
        pauses = pauses_ms(first, second) + pauses_ms(second, first)
        for host in (first, second):
            host.restore_link()
        goes_on_after(job, time.monotonic())
        (tmp_path / "stop").touch()
        assert job.wait() == 0, job.err
        assert job.out.count("whole") == 2
    assert pauses, "no connection has waited"
    if kernel_limits_pauses():
        assert max(pauses) <= 1000


def test_a_link_that_stays_cut_is_named(cluster, tmp_path):
    """Only the path of the data is cut, so the control plane reports nothing."""
    first, second = cluster.hosts[:2]
    with job_of(cluster, tmp_path / "job", BUSY, "--link-timeout", "2") as job:
        job.wait_for(r"at \d")
        first.cut_path_to(second)
        second.cut_path_to(first)
        assert job.wait() != 0
    assert re.search(
        r"PeerLostError: .*lost the connection to rank [01]: \S+: "
        r"nothing was acknowledged for 2\.0 s",
        job.err,
    ), job.err
