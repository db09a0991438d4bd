"""The benchmark on several hosts whose names do not resolve."""

from __future__ import annotations

import sys

import pytest

from bluecomm.bench.comparison.results import Comparison
from tests.bench.compare import QUICK
from tests.support.launch import launched

pytestmark = pytest.mark.cluster


def test_ddp_is_measured_between_hosts(cluster, tmp_path):
    """Gloo would connect to 127.0.0.1, the address it falls back to."""
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:1,node2:1"]
    bench = [sys.executable, "-m", "bluecomm.bench", "train", "--layers", "2x4K"]
    effort = ["--algorithms", "ddp", "--rounds", "1", "--steps", "1", "--warmup", "0"]
    with launched(tmp_path, *options, *bench, *effort) as job:
        assert job.wait() == 0, job.err
        assert "ddp" in job.out


def test_steps_are_compared_behind_slow_links(cluster, tmp_path):
    """``tests.bench.compare --quick`` runs this once for each rate."""
    for host in cluster.hosts:
        host.limit_rate("1gbit")
    names, found = ["gradient_allreduce", "diloco"], tmp_path / "1gbit.json"
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:1,node2:1"]
    bench = [sys.executable, "-m", "bluecomm.bench", "compare"]
    effort = [*QUICK, "--seconds", "0.1", "--algorithms", *names]
    where = ["--link", "1 Gbit/s", "--json", str(found)]
    with launched(tmp_path, *options, *bench, *effort, *where) as job:
        assert job.wait() == 0, job.err
    exact, rare = Comparison.read(found).costs
    assert [exact.contender, rare.contender] == names
    assert exact.link == rare.link == "1 Gbit/s"
    # Two ranks send each other half of the gradients, twice; float32.
    parameters = 38_170
    assert 4 * parameters < exact.sent_per_step < 4.1 * parameters
    assert rare.step_ms > 0
