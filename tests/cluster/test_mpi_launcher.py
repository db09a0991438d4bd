"""``bfrun --launcher mpi`` between hosts, where mpirun logs in by SSH."""

from __future__ import annotations

import re

import pytest

from tests.support.launch import launched, python
from tests.support.mpi import find_mpi

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(("name", "slots"), [("openmpi", 2), ("mpich", 2)])
def test_ranks_of_two_hosts_and_who_failed(cluster, tmp_path, name, slots):
    """Ranks meet over MPI, which then carries tensors between the hosts."""
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
        "sys.exit(3 if me == bf.size() // 2 else 0)\n"
    )
    # Hosts are named by address, because mpirun's daemons do not read SSH settings.
    first, second = (host.address for host in cluster.hosts[:2])
    prefix = str(mpi.launcher.parents[1])
    options = ["--launcher", "mpi", "--prefix", prefix]
    options += [
        "--ssh-config",
        str(cluster.ssh_config),
        "-H",
        f"{first}:{slots},{second}:{slots}",
    ]
    environ = {"OMP_NUM_THREADS": "1", "BLUECOMM_START_TIMEOUT_S": "60"}
    with launched(tmp_path, *options, *python(body), environ=environ) as job:
        assert job.wait() == 3, job.out + job.err
        size = 2 * slots
        expected = []
        for rank in range(size):
            links = [
                "shm" if other // slots == rank // slots else "mpi"
                for other in range(size)
            ]
            links[rank] = "self"
            where = f"node{rank // slots + 1} {rank % slots}"
            expected.append(f"{rank} {where} {float(size)} {links}")
        # mpirun may not show the last output after the first rank has failed, and MPI
        # may print errors of its own.
        told = re.findall(r"^\d+ node.*", job.out, re.MULTILINE)
        assert set(told) <= set(expected), job.out
        assert f"rank {slots} on node2 " in job.err.splitlines()[-1], job.err
        job.wait_until_empty()
