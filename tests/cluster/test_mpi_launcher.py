"""``bfrun --launcher mpi`` between hosts, where mpirun logs in by SSH."""

from __future__ import annotations

import pytest

from tests.support.launch import launched, python
from tests.support.mpi import find_mpi

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_ranks_of_two_hosts_and_who_failed(cluster, tmp_path, name):
    """Two ranks on each host meet over MPI, which then carries tensors between them."""
    mpi = find_mpi(name)
    body = (
        "import os, socket, sys, torch\n"
        "import bluecomm as bf\n"
        "from bluecomm.runtime import current_communicator\n"
        "bf.init()\n"
        "total = bf.allreduce(torch.ones(300_000), op=bf.Sum)[-1].item()\n"
        "world, me = current_communicator().world, bf.rank()\n"
        "links = [world.transport_of(rank) for rank in range(bf.size())]\n"
        "where = f'{socket.gethostname()} {bf.local_rank()}'\n"
        "os.write(1, f'{me} {where} {total} {links}\\n'.encode())\n"
        "bf.barrier()\n"
        "bf.shutdown()\n"
        "sys.exit(3 if me == 2 else 0)\n"
    )
    # By address: mpirun's own daemons know nothing of the names in the SSH settings.
    first, second = (host.address for host in cluster.hosts[:2])
    prefix = str(mpi.launcher.parents[1])
    options = ["--launcher", "mpi", "--prefix", prefix]
    options += ["--ssh-config", str(cluster.ssh_config), "-H", f"{first}:2,{second}:2"]
    environ = {"OMP_NUM_THREADS": "1", "BLUECOMM_START_TIMEOUT_S": "60"}
    with launched(tmp_path, *options, *python(body), environ=environ) as job:
        assert job.wait(120) == 3, job.out + job.err
        expected = []
        for rank in range(4):
            links = ["shm" if other // 2 == rank // 2 else "mpi" for other in range(4)]
            links[rank] = "self"
            host = f"node{rank // 2 + 1}"
            expected.append(f"{rank} {host} {rank % 2} 4.0 {links}")
        # The end of rank 2 may cut off what mpirun still had to show.
        assert set(job.out.splitlines()) <= set(expected), job.out
        assert "rank 2 on node2 " in job.err.splitlines()[-1], job.err
        job.wait_until_empty(30)
