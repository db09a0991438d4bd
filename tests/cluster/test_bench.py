"""The benchmark on several hosts whose names do not resolve."""

from __future__ import annotations

import sys

import pytest

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
