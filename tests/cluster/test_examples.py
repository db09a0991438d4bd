"""Training across hosts: the benchmark example, and Lightning's strategy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.launchers.support import LIGHTNING, check_lightning
from tests.support.launch import ROOT, launched
from tests.support.trainers import TRAINER_LIMIT_S

pytestmark = pytest.mark.cluster

NAMES = ["gradient_allreduce", "neighbor_allreduce", "hierarchical_neighbor_allreduce"]


@pytest.fixture(scope="module")
def results(cluster, tmp_path_factory):
    """The reports of the ranks of two hosts for each algorithm, from one job."""
    folder = tmp_path_factory.mktemp("benchmark")
    counts = ["--num-warmup-batches", "0", "--num-batches-per-iter", "1"]
    size = ["--model", "resnet18", "--image-size", "32", "--batch-size", "2"]
    files = {name: folder / f"{name}.json" for name in NAMES}
    script = str(ROOT / "examples" / "pytorch_benchmark.py")
    common = [script, *size, "--num-iters", "2", *counts]
    commands = [
        [*common, "--json", str(file), "--dist-optimizer", name]
        for name, file in files.items()
    ]
    listed = folder / "cases.json"
    listed.write_text(json.dumps(commands))
    hosts = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:2,node2:2"]
    many = str(ROOT / "tests" / "examples" / "run_many.py")
    with launched(folder, *hosts, sys.executable, many, str(listed)) as job:
        assert job.wait() == 0, job.err
    assert job.out.count("total img/sec on 4 ranks") == len(NAMES)
    return {name: json.loads(file.read_text()) for name, file in files.items()}


@pytest.mark.parametrize("name", NAMES)
def test_benchmark_on_two_hosts(results, name):
    assert results[name]["dist_optimizer"] == name
    assert len(results[name]["images_per_second_per_rank"]) == 4


def test_lightning_on_two_hosts(cluster, tmp_path):
    pytest.importorskip("lightning")
    hosts = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:1,node2:1"]
    with launched(tmp_path, *hosts, *LIGHTNING) as job:
        code = job.wait(TRAINER_LIMIT_S)
        done = subprocess.CompletedProcess([], code, job.out, job.err)
    for one in check_lightning(done, 2, machines=2):
        assert one["source"] == "bfrun"
        assert one["node_of_lightning"] == one["rank"]
