"""No process is left on any host, whichever process is killed or link is cut.

Other tests measure the times that add up here: the silence of a connection, the grace
of survivors, and the time from SIGTERM to SIGKILL. The ranks here run for minutes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.launch import Launched, launched

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

# A rank with a child, both of which ignore SIGTERM.
STUBBORN = "trap '' TERM HUP; echo $$; sleep 1001 & wait; wait; sleep 1002"


@pytest.fixture
def job(cluster, tmp_path) -> Iterator[Launched]:
    """A job with two ranks on each of two hosts, all running."""
    yield from jobs(cluster, tmp_path)


@pytest.fixture
def impatient_job(cluster, tmp_path) -> Iterator[Launched]:
    """The same job, in which a host that is silent for 4 s is lost."""
    yield from jobs(cluster, tmp_path, "--link-timeout", "2")


def jobs(cluster: Cluster, folder: Path, *options: str) -> Iterator[Launched]:
    """Yield one job, and end it."""
    hosts = ("--ssh-config", str(cluster.ssh_config), "-H", "node1:2,node2:2")
    with launched(folder, *hosts, *options, "sh", "-c", STUBBORN) as made:
        made.wait_for(r"(\[\d\] \d+\n){4}")
        assert set(cluster.processes()) == {"node1", "node2"}
        yield made


def pids_of(cluster: Cluster, number: int, word: str) -> list[int]:
    """Return the processes of one host with ``word`` in their command line."""
    found = cluster.hosts[number].processes()
    pids = [pid for pid, command in found.items() if word in command]
    assert pids, f"no process with '{word}' among {found}"
    return pids


def test_rank_killed(cluster, job):
    os.kill(int(job.wait_for(r"^\[3\] (\d+)$")[1]), signal.SIGKILL)
    assert job.wait() == 128 + signal.SIGKILL
    cluster.wait_until_empty()
    assert "rank 3 on node2" in job.err
    assert "SIGKILL" in job.err


def test_agent_killed(cluster, job):
    agent = max(pids_of(cluster, 1, "bfrun"))
    os.kill(agent, signal.SIGKILL)
    cluster.wait_until_empty()
    assert job.wait() != 0
    assert "rank 2 on node2 is lost with its agent" in job.err


def test_driver_killed(cluster, job):
    job.signal(signal.SIGKILL)
    cluster.wait_until_empty()


def test_driver_interrupted(cluster, job):
    job.signal(signal.SIGINT)
    assert job.wait() == 128 + signal.SIGINT
    cluster.wait_until_empty()


def test_driver_terminated(cluster, job):
    job.signal(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM
    cluster.wait_until_empty()


def test_link_of_one_host_cut(cluster, impatient_job):
    cluster.hosts[1].cut_link()
    cluster.wait_until_empty()
    assert impatient_job.wait() != 0
    assert "node2" in impatient_job.err
    assert "it was silent for 4 s" in impatient_job.err


def test_sshd_session_killed(cluster, job):
    """The SSH connection breaks while both ends and the network live."""
    sshd = cluster.hosts[1].sshd.pid
    children = f"/proc/{sshd}/task/{sshd}/children"
    with open(children) as file:
        for pid in file.read().split():
            os.kill(int(pid), signal.SIGKILL)
    cluster.wait_until_empty()
    assert job.wait() != 0
    assert "rank 2 on node2 is lost with its agent" in job.err


def test_driver_stopped_for_a_while_keeps_the_job(cluster, impatient_job):
    """Ctrl-Z and fg: a driver that announces its stop does not count as lost."""
    impatient_job.signal(signal.SIGTSTP)
    time.sleep(5.5)
    assert set(cluster.processes()) == {"node1", "node2"}
    impatient_job.signal(signal.SIGCONT)
    time.sleep(0.5)
    assert impatient_job.process.poll() is None
    impatient_job.signal(signal.SIGINT)
    assert impatient_job.wait() == 128 + signal.SIGINT
