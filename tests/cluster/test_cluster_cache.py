"""A dataset whose samples lie in the memory of several hosts."""

from __future__ import annotations

import json
import re
import sys

import pytest

from bluecomm.data.stores.cluster.owners import owner_of
from tests.support.cluster_cache import LENGTH
from tests.support.launch import launched

pytestmark = [pytest.mark.cluster, pytest.mark.faults]


def test_samples_are_loaded_once_also_when_a_host_is_lost(cluster, tmp_path):
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:2,node2:2"]
    options += ["--on-failure", "continue", "-x", "OMP_NUM_THREADS=1"]
    program = [sys.executable, "-m", "tests.support.cluster_cache"]
    victims = ["2", "3"]
    command = [*program, str(tmp_path / "loaded"), *victims]
    with launched(tmp_path, *options, *command) as job:
        job.wait()
        assert job.left() == {}
    found = re.search(r"\[\[.*\]\]", job.out)
    assert found, job.out + job.err
    first, second, *others = json.loads(found[0])
    assert first == list(range(LENGTH))
    assert second == []
    # Some samples of the lost host may have been read before it was lost.
    lost = [key for key in range(LENGTH) if owner_of(key, range(2)) == 1]
    assert sorted(others[0] + others[1]) == lost
    assert others[2] == []
    warned = "the cache goes on without the machine of rank [23]"
    assert len(re.findall(warned, job.err)) == 1, job.err
