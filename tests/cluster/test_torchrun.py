"""torchrun on two hosts: the ranks meet in its store and talk over TCP."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.launchers.support import (
    PROGRAM,
    check_operations,
    findings,
    run_launcher,
)
from tests.support.entry_points import install_entry_points
from tests.support.launch import ROOT
from tests.support.python_path import python_path

pytestmark = pytest.mark.cluster

PORT = 29511


def test_two_hosts_meet_in_the_store_of_the_first(cluster):
    hosts = cluster.hosts[:2]

    def run(node: int) -> subprocess.CompletedProcess[str]:
        inside = ["nsenter", "-t", str(hosts[node].sshd.pid), "-n", "-u", "-m"]
        where = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2"]
        store = ["--master-addr", hosts[0].address, "--master-port", str(PORT)]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *where, *store]
        return run_launcher([*inside, *torchrun, "-m", PROGRAM, "operations"])

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, range(2))
    assert second.returncode == 0, second.stderr
    first.stdout += second.stdout
    found = check_operations(first, 4, machines=2)
    assert all(one["transports"] == ["shm", "tcp"] for one in found)
    # Without a secret file of the user, the keys are in the open store.
    assert "BLUECOMM_SECRET_FILE" in first.stderr


def test_process_groups_of_two_hosts_meet_in_the_store_of_torch(cluster, tmp_path):
    hosts = cluster.hosts[:2]
    site = install_entry_points(tmp_path / "site")
    environ = {
        "PYTHONPATH": python_path(site, ROOT),
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": str(PORT),
        "WORLD_SIZE": "2",
    }

    def run(rank: int) -> subprocess.CompletedProcess[str]:
        inside = ["nsenter", "-t", str(hosts[rank].sshd.pid), "-n", "-u", "-m"]
        script = ["-m", "tests.launchers.torch_script", "bluecomm"]
        variables = {**environ, "RANK": str(rank)}
        return run_launcher([*inside, sys.executable, *script], environ=variables)

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(run, range(2)))
    assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
    first, second = (findings(one)[0] for one in done)
    assert first["trained"] == second["trained"]
    assert "BLUECOMM_SECRET_FILE" in done[0].stderr
