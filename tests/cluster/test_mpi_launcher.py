"""``bfrun --launcher mpi`` between hosts, where mpirun logs in by SSH."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.support.launch import launched, python

pytestmark = pytest.mark.cluster


def test_ranks_of_two_hosts_and_who_failed(cluster, tmp_path):
    if shutil.which("mpirun") is None:
        if os.environ.get("CI"):
            pytest.fail("there is no mpirun on PATH")
        pytest.skip("there is no mpirun on PATH")
    body = (
        "import os, socket, sys\n"
        "n = os.environ\n"
        "line = f\"{n['RANK']} {n['LOCAL_RANK']} {socket.gethostname()}\\n\"\n"
        "os.write(1, line.encode())\n"
        "sys.exit(3 if n['RANK'] == '2' else 0)\n"
    )
    # By address: mpirun's own daemons know nothing of the names in the SSH settings.
    first, second = (host.address for host in cluster.hosts[:2])
    options = ["--launcher", "mpi", "--ssh-config", str(cluster.ssh_config)]
    hosts = ["-H", f"{first}:2,{second}:2"]
    with launched(tmp_path, *options, *hosts, *python(body)) as job:
        assert job.wait(40) == 3, job.err
        expected = {"0 0 node1", "1 1 node1", "2 0 node2", "3 1 node2"}
        assert set(job.out.splitlines()) <= expected
        assert "2 0 node2" in job.out
        assert "rank 2 on node2 " in job.err.splitlines()[-1]
        job.wait_until_empty()
