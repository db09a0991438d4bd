"""What goes wrong under an MPI's launcher is said, in time, and ends the job."""

from __future__ import annotations

import sys

import pytest

from tests.support.mpi import environment, find_mpi, run

pytestmark = pytest.mark.mpi

INIT = "import bluecomm as bf; bf.init()"


def launch(name: str, ranks: int, program: str, **variables: str) -> tuple[int, str]:
    """Return exit code and output of a program under a launcher."""
    mpi = find_mpi(name)
    variables["MPI4PY_LIBMPI"] = str(mpi.library)
    command = mpi.command(ranks, sys.executable, "-c", program)
    done = run(command, environment(**variables))
    return done.returncode, done.stdout + done.stderr


def test_library_of_another_mpi() -> None:
    other = str(find_mpi("mpich").library)
    code, text = launch("openmpi", 2, INIT, BLUECOMM_MPI_LIB=other)
    assert code != 0
    assert "Open MPI's launcher started this process: 'MPICH Version" in text
    assert "does not belong to this launcher" in text


def test_rank_that_never_calls_init() -> None:
    program = f"""
from mpi4py import MPI
import time
if MPI.COMM_WORLD.rank == 1:
    time.sleep(5)
{INIT}
"""
    code, text = launch("mpich", 3, program, BLUECOMM_START_TIMEOUT_S="2")
    assert code != 0
    assert (
        "ranks 1 of the MPI communicator did not call bluecomm.init within 2 s" in text
    )


def test_rank_that_raises_ends_the_job() -> None:
    """Here mpi4py ends MPI, which waits for all ranks."""
    program = f"""
from mpi4py import MPI
import torch
{INIT}
if bf.rank() == 1:
    raise KeyError("mine")
bf.allreduce(torch.ones(100_000), name="never")
"""
    code, text = launch("openmpi", 3, program, BLUECOMM_TRANSPORT="mpi")
    assert code != 0
    assert "KeyError: 'mine'" in text
    assert "PeerLostError: allreduce 'never'" in text
    assert "has ended its communication" in text


def test_mpi_without_threads() -> None:
    program = f"""
import mpi4py
mpi4py.rc.thread_level = "funneled"
from mpi4py import MPI
import torch
{INIT}
assert not bf.mpi_threads_supported()
assert bf.allreduce(torch.ones(100_000), op=bf.Sum)[0] == 2
print("went on", flush=True)
"""
    code, text = launch("openmpi", 2, program, BLUECOMM_TRANSPORT="mpi")
    assert code != 0
    assert "BLUECOMM_TRANSPORT is mpi, but this world has no MPI for it" in text
    code, text = launch("openmpi", 2, program)
    assert code == 0, text
    assert text.count("went on") == 2
