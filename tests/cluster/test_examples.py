"""The benchmark example across hosts, started as README says."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.launch import ROOT, launched

pytestmark = pytest.mark.cluster


def test_benchmark_on_two_hosts(cluster, tmp_path):
    result = tmp_path / "result.json"
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:2,node2:2"]
    script = str(ROOT / "examples" / "pytorch_benchmark.py")
    counts = ["--num-warmup-batches", "1", "--num-batches-per-iter", "2"]
    with launched(
        tmp_path,
        *(*options, sys.executable, script, "--model", "lenet", "--batch-size", "4"),
        *("--num-iters", "2", *counts, "--json", str(result)),
        *("--dist-optimizer", "hierarchical_neighbor_allreduce"),
    ) as job:
        assert job.wait(90) == 0, job.err
    assert "total img/sec on 4 ranks" in job.out
    assert len(json.loads(result.read_text())["images_per_second_per_rank"]) == 4
