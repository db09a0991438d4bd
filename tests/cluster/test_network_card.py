"""Counts the bytes of hierarchical operations on each machine's network card."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.launch import launched

pytestmark = pytest.mark.cluster

NBYTES = 4 << 20
STEPS = 5

# Prints the bytes sent by the machine's network card and by this rank, as JSON.
PROGRAM = f"""
import json
import torch
import bluecomm as bf

OPERATION = "hierarchical_neighbor_allreduce"


def sent_by_card():
    lines = open("/proc/net/dev").read().splitlines()
    (card,) = [line for line in lines if line.strip().startswith("eth0:")]
    return int(card.partition(":")[2].split()[8])


bf.init()
x = bf.shared_empty({NBYTES} // 4).fill_(float(bf.rank()))
bf.hierarchical_neighbor_allreduce(x)  # makes the connections
bf.barrier()
bf.reset_stats()
before = sent_by_card()
bf.barrier()  # nobody sends before all have looked
for _ in range({STEPS}):
    result = bf.hierarchical_neighbor_allreduce(x)
bf.barrier()
print(json.dumps({{
    "card": sent_by_card() - before,
    "between_machines": [
        each.operations[OPERATION].bytes_sent
        for each in bf.stats().neighbors
        if each.transport == "tcp" and OPERATION in each.operations
    ],
    "result": result[0].item(),
}}), flush=True)
bf.shutdown()
"""


def test_a_card_sends_the_tensor_once_and_each_rank_its_shard(cluster, tmp_path):
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:4,node2:4"]
    with launched(tmp_path, *options, sys.executable, "-c", PROGRAM) as job:
        assert job.wait() == 0, job.err
        lines = [line.partition(" ")[2] for line in job.out.splitlines()]
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(answers) == 8
    assert {answer["result"] for answer in answers} == {3.5}
    for answer in answers:
        # Headers and barriers add some percent; on a busy machine, so do heartbeats and
        # packets that are sent again. A shard more would be 25 %.
        assert 1.0 <= answer["card"] / (STEPS * NBYTES) < 1.2
        assert answer["between_machines"] == [STEPS * NBYTES / 4]
