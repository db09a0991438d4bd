"""A network between hosts is cut. It heals and the job goes on, or the job ends."""

from __future__ import annotations

import re
import sys
import time

import pytest

from tests.support.cluster import run
from tests.support.launch import launched

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

CUT_S = 3.0

# The ranks exchange tensors all the time, and print what they have done twice a second.
BUSY = """
import time
import torch
import bluecomm as bf

bf.init()
x = torch.ones(1 << 18)
said, end, count = 0.0, time.monotonic() + SECONDS, 0
while bf.allreduce(torch.tensor(time.monotonic() < end), op=bf.Min):
    assert bf.allreduce(x, average=False).eq(bf.size()).all()
    count += 1
    if time.monotonic() - said > 0.5:
        said = time.monotonic()
        print(f"at {said:.3f} after {count}", flush=True)
print("whole", flush=True)
bf.shutdown()
"""

# The ranks use their link once, and then only wait.
IDLE = """
import time
import torch
import bluecomm as bf

bf.init()
bf.allreduce(torch.ones(1))
print("at 0 after 1", flush=True)
time.sleep(SECONDS)
assert bf.allreduce(torch.ones(1 << 18)).eq(1).all()
print("whole", flush=True)
bf.shutdown()
"""


def job_of(cluster, folder, program: str, seconds: float, *more: str):
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:1,node2:1", *more]
    program = program.replace("SECONDS", str(seconds))
    return launched(folder, *options, sys.executable, "-c", program)


@pytest.mark.parametrize("program", [BUSY, IDLE], ids=["busy", "idle"])
def test_a_link_that_heals_goes_on(cluster, tmp_path, program):
    with job_of(
        cluster, tmp_path, program, CUT_S + 2, "--link-timeout", "6", "--encrypt"
    ) as job:
        job.wait_for(r"at \d")
        cluster.hosts[1].fall_silent()
        time.sleep(CUT_S)
        cluster.hosts[1].restore_link()
        healed_at = time.monotonic()
        assert job.wait() == 0, job.err
    assert job.out.count("whole") == 2
    if program is BUSY:
        times = [float(found) for found in re.findall(r"at ([\d.]+)", job.out)]
        # The ranks have worked again; how soon depends on the kernel.
        assert max(times) > healed_at


def test_a_host_that_stays_cut_off_is_named(cluster, tmp_path):
    with job_of(cluster, tmp_path, BUSY, 1000, "--link-timeout", "2") as job:
        job.wait_for(r"at \d")
        cluster.hosts[1].fall_silent()
        assert job.wait() != 0
        cluster.wait_until_empty()
    assert re.search(
        r"PeerLostError: .* on rank 0: rank 1 on node2 is lost with its agent: "
        r"it was silent for 4 s",
        job.err,
    ), job.err


def test_a_link_that_stays_cut_is_named(cluster, tmp_path):
    """Only the path of the data is cut; the control plane has nothing to say."""
    first, second = cluster.hosts[:2]
    with job_of(cluster, tmp_path, BUSY, 1000, "--link-timeout", "2") as job:
        job.wait_for(r"at \d")
        # A neighbor that does not exist: packets between the ranks go nowhere.
        for host, other in ((first, second), (second, first)):
            nowhere = ["lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent"]
            run("ip", "-n", host.namespace, "neigh", "replace", other.address, *nowhere)
        assert job.wait() != 0
        for host in (first, second):
            run(
                "ip",
                "-n",
                host.namespace,
                "neigh",
                "flush",
                "dev",
                "eth0",
                "nud",
                "all",
            )
    assert re.search(
        r"PeerLostError: .*lost the connection to rank [01]: \S+: "
        r"nothing was acknowledged for 2\.0 s",
        job.err,
    ), job.err
