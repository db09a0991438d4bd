"""The other hosts train on when a rank, or a host with all of its ranks, is lost."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.support.fault_matrix import BY_NAME, Scenario, covered, run_scenario
from tests.support.survival import Hit

pytestmark = [pytest.mark.cluster, pytest.mark.faults]


@pytest.mark.parametrize("name", ["kill-in-turn", "stop"])
def test_the_others_train_on(name, cluster, tmp_path):
    run_scenario(BY_NAME[name], covered(), tmp_path, cluster=cluster)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_host_is_lost(lost, cluster, tmp_path):
    victims = (2 * lost, 2 * lost + 1)
    hits = tuple(Hit(rank, "outside") for rank in victims)

    def kill_agent(job):
        for rank in victims:
            job.wait_for(rf"\[{rank}\] ready")
        found = cluster.hosts[lost].processes()
        agent = max(pid for pid, text in found.items() if "bfrun" in text)
        os.kill(agent, signal.SIGKILL)
        job.wait()
        for rank in victims:
            pattern = rf"rank {rank} on node{lost + 1} .*lost (with its agent|its link)"
            assert re.search(pattern, job.err), job.err

    scenario = Scenario("host", 4, hits)
    run_scenario(scenario, covered(), tmp_path, cluster=cluster, meddle=kill_agent)


def test_nobody_is_excluded_when_packets_are_lost(cluster, tmp_path):
    scenario = Scenario("loss", 4, (Hit(1, "late"),))
    names = ["neighbor_allreduce", "gradient_allreduce"]
    hosts = cluster.hosts[:2]
    try:
        for host in hosts:
            host.lose_packets(5)
        run_scenario(scenario, names, tmp_path, cluster=cluster)
        assert all(host.lost_packets() > 0 for host in hosts)
    finally:
        for host in hosts:
            host.lose_packets(0)


def test_a_host_is_cut_off(cluster, tmp_path):
    """Two of three hosts are the primary side, and decide before the launcher knows."""
    victims = (4, 5)
    hits = tuple(Hit(rank, "outside") for rank in victims)

    def cut(job):
        for rank in victims:
            job.wait_for(rf"\[{rank}\] ready")
        cluster.hosts[2].cut_link()
        job.wait()
        for rank in victims:
            why = r"(been silent for [0-9.]+ s|lost its link to another rank)"
            pattern = rf"rank {rank} on node3 .* has {why}; the job"
            assert re.search(pattern, job.err), job.err

    scenario = Scenario("cut", 6, hits, ("--link-timeout", "15"))
    names = ["neighbor_allreduce", "gradient_tracking"]
    run_scenario(scenario, names, tmp_path, cluster=cluster, hosts=3, meddle=cut)
