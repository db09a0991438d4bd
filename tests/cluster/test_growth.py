"""Jobs that grow and shrink with the hosts that a script names, over SSH."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal

import pytest

from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.growing import growing_command, offer
from tests.support.launch import launched

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

# Each newcomer imports torch anew.
LIMIT_S = 4 * DEADLINE_S


@pytest.fixture
def ssh_config(cluster, tmp_path):
    """Settings with one more host, ``stranger``, whose key nobody knows."""
    stranger = f"HostName {cluster.hosts[2].address}\n  UserKnownHostsFile /dev/null"
    path = tmp_path / "ssh_config"
    known = cluster.ssh_config.read_text()
    path.write_text(f"Host stranger\n  {stranger}\n{known}")
    return ["--ssh-config", str(path)]


def test_hosts_that_are_new_to_the_job_come_and_go(ssh_config, tmp_path):
    """The job begins on this machine, and ends on another one."""
    stages = [
        ("localhost:1", 1),
        ("localhost:1 stranger:1 node2:3", 4),
        ("node2:2", 2),
    ]
    names = ["neighbor_allreduce", "gradient_allreduce"]
    options, command = growing_command(tmp_path, stages, names)
    options += [*ssh_config, "-np", "1", "-x", "OMP_NUM_THREADS=1"]
    with launched(tmp_path, *options, *command) as job:
        assert job.wait(LIMIT_S) == 0, job.out + job.err
        assert job.left() == {}
    found = [json.loads(text) for text in re.findall(r"\{.*\}", job.out)]
    assert sorted(one["rank"] for one in found) == [1, 2], job.out + job.err
    for one in found:
        assert (one["size"], one["members"], one["shares"]) == (4, [1, 2], 2), one
        assert one["machines"] == 2, one
        assert (one["lost"], sorted(one["finished"])) == ([], [0, 3]), one
        for name in names:
            assert one[name]["is_one"], one
            assert abs(one[name]["missed"]) < 0.1, one
    assert job.err.count("bfrun: host node2 takes part in the job now") == 1
    assert job.err.count("bfrun: warning: host stranger gets no ranks") == 1
    for left in ("rank 0 on localhost", "rank 3 on node2"):
        assert re.search(f"{left} .* has left; the job goes on", job.err), job.err


def test_a_job_goes_on_without_hosts_that_fail(cluster, ssh_config, tmp_path):
    """Its ranks never meet, because only the hosts matter."""
    node1, node2, node3 = cluster.hosts
    options, _ = growing_command(tmp_path, [("node1:1", 1)], [])
    options += [*ssh_config, "-np", "1"]
    with launched(tmp_path, *options, "sleep", "1000") as job:
        wait_until(lambda: "sleep 1000" in node1.processes().values(), "no rank")
        offer(tmp_path, "node1:1 stranger:1")
        warning = "bfrun: warning: host stranger gets no ranks: "
        job.wait_for(rf"^{warning}its SSH host key is not known: .*; run 'ssh ")
        offer(tmp_path, "node1:1 stranger:1 node2:1")
        job.wait_for("^bfrun: host node2 takes part in the job now")
        for pid in node2.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.wait_for("^bfrun: warning: host node2 gets no ranks: its agent is lost: ")
        # A host that is being checked when the job ends.
        node3.cut_link()
        before = node1.processes()
        offer(tmp_path, "node1:1 node3:1")
        wait_until(lambda: node1.processes().keys() - before.keys(), "no check")
        assert job.process.poll() is None
        job.signal(signal.SIGINT)
        assert job.wait() == 128 + signal.SIGINT
        assert job.err.count(warning) == 1
        cluster.wait_until_empty()
        assert job.left() == {}


def test_the_check_of_a_host_does_not_outlive_bfrun(cluster, ssh_config, tmp_path):
    node1, node2, _ = cluster.hosts
    options, _ = growing_command(tmp_path, [("node1:1", 1)], [])
    options += [*ssh_config, "-np", "1"]
    with launched(tmp_path, *options, "sleep", "1000") as job:
        wait_until(lambda: "sleep 1000" in node1.processes().values(), "no rank")
        offer(tmp_path, "node1:1 node2:1")
        wait_until(node2.processes, "nothing is started on the new host")
        job.signal(signal.SIGKILL)
        job.wait()
        cluster.wait_until_empty()
