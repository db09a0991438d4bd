"""Tests results of operations between hosts, and the transports that carry them."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from tests.support.launch import launched

pytestmark = pytest.mark.cluster

# Prints the results of this rank and their transports, as JSON.
PROGRAM = """
import json
import torch
import bluecomm as bf

bf.init()
x = torch.arange(3, dtype=torch.float64) + 10.0 * bf.rank()
print(json.dumps({
    "rank": bf.rank(),
    "machine": bf.machine_rank(),
    "allreduce": bf.allreduce(x).tolist(),
    "neighbor_allreduce": bf.neighbor_allreduce(x).tolist(),
    "hierarchical": bf.hierarchical_neighbor_allreduce(x).tolist(),
    "matrix": bf.topology_util.mixing_matrix(bf.load_topology()).tolist(),
    "machine_matrix": bf.topology_util.mixing_matrix(
        bf.load_machine_topology()).tolist(),
    "transports": {each.rank: each.transport for each in bf.stats().neighbors},
}), flush=True)
bf.shutdown()
"""


@pytest.fixture(scope="module")
def answers(cluster, tmp_path_factory):
    """Return the output of each of 2 x 2 ranks, in rank order."""
    folder = tmp_path_factory.mktemp("job")
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:2,node2:2"]
    with launched(folder, *options, sys.executable, "-c", PROGRAM) as job:
        assert job.wait() == 0, job.err
        lines = [line.partition(" ")[2] for line in job.out.splitlines()]
    found = sorted(map(json.loads, lines), key=lambda answer: answer["rank"])
    assert [answer["rank"] for answer in found] == [0, 1, 2, 3]
    return found


X = np.arange(3) + 10.0 * np.arange(4)[:, None]


def stack(answers, name: str) -> np.ndarray:
    return np.stack([answer[name] for answer in answers])


def test_allreduce(answers):
    expected = np.broadcast_to(X.mean(axis=0), X.shape)
    np.testing.assert_allclose(stack(answers, "allreduce"), expected)


def test_neighbor_allreduce_multiplies_by_the_mixing_matrix(answers):
    matrix = np.array(answers[0]["matrix"])
    np.testing.assert_allclose(stack(answers, "neighbor_allreduce"), matrix @ X)


def test_hierarchical_neighbor_allreduce_mixes_the_means_of_machines(answers):
    assert [answer["machine"] for answer in answers] == [0, 0, 1, 1]
    means = X.reshape(2, 2, 3).mean(axis=1)
    mixed = np.array(answers[0]["machine_matrix"]) @ means
    expected = np.repeat(mixed, 2, axis=0)
    np.testing.assert_allclose(stack(answers, "hierarchical"), expected)


def test_hosts_talk_over_tcp_although_shared_memory_would_reach(answers):
    """Namespace hosts share a kernel, so only their agents tell them apart."""
    for answer in answers:
        used = {"here": set(), "elsewhere": set()}
        for peer, transport in answer["transports"].items():
            same = answers[int(peer)]["machine"] == answer["machine"]
            used["here" if same else "elsewhere"].add(transport)
        assert used == {"here": {"shm"}, "elsewhere": {"tcp"}}
