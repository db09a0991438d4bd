"""The other hosts train on when one is lost with all of its ranks."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.support.launch import launched
from tests.support.survival import check_survivors, survival_command

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

ALGORITHMS = ["neighbor_allreduce", "gradient_tracking"]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_host_is_lost(lost, cluster, tmp_path):
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:2,node2:2"]
    options += ["--on-failure", "continue", "-x", "OMP_NUM_THREADS=1"]
    victims = [2 * lost, 2 * lost + 1]
    command = survival_command(victims, "outside", ALGORITHMS)
    with launched(tmp_path, *options, *command) as job:
        for rank in victims:
            job.wait_for(rf"\[{rank}\] ready")
        found = cluster.hosts[lost].processes()
        agent = max(pid for pid, text in found.items() if "bfrun" in text)
        os.kill(agent, signal.SIGKILL)
        assert job.wait() == 0, job.out + job.err
        check_survivors(job, 4, victims, ALGORITHMS)
        for rank in victims:
            pattern = rf"rank {rank} on node{lost + 1} is lost with its agent"
            assert re.search(pattern, job.err), job.err
    cluster.wait_until_empty()
