"""The benchmark example across hosts, started as README says."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.launch import ROOT, launched

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    "name",
    ["gradient_allreduce", "neighbor_allreduce", "hierarchical_neighbor_allreduce"],
)
def test_benchmark_on_two_hosts(cluster, tmp_path, name):
    result = tmp_path / "result.json"
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:2,node2:2"]
    script = str(ROOT / "examples" / "pytorch_benchmark.py")
    counts = ["--num-warmup-batches", "0", "--num-batches-per-iter", "1"]
    size = ["--image-size", "32", "--batch-size", "2"]
    with launched(
        tmp_path,
        *(*options, sys.executable, script, "--model", "resnet18", *size),
        *("--num-iters", "2", *counts, "--json", str(result)),
        *("--dist-optimizer", name),
    ) as job:
        assert job.wait() == 0, job.err
    assert "total img/sec on 4 ranks" in job.out
    assert len(json.loads(result.read_text())["images_per_second_per_rank"]) == 4
