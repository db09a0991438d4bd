"""Failures of MPI are reported in time and end the job."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deadlines import JOB_S
from tests.support.mpi import environment, find_mpi, run

pytestmark = pytest.mark.mpi

INIT = "import bluecomm as bf; bf.init()"


def launch(name: str, ranks: int, program: str, **variables: str) -> tuple[int, str]:
    """Return exit code and output of a program under a launcher."""
    command = find_mpi(name).command(ranks, sys.executable, "-c", program)
    done = run(command, environment(**variables))
    return done.returncode, done.stdout + done.stderr


def alone(program: str, **variables: str) -> tuple[int, str]:
    """Return exit code and output of a process that no launcher started."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("launcher", "other", "said"),
    [
        ("openmpi", "mpich", "Open MPI's launcher started this process: 'MPICH"),
        ("mpich", "openmpi", "MPICH's launcher started this process: 'Open MPI"),
    ],
)
def test_library_of_another_mpi(launcher: str, other: str, said: str) -> None:
    library = str(find_mpi(other).library)
    code, text = launch(launcher, 1, INIT, BLUECOMM_MPI_LIB=library)
    assert code != 0
    assert said in text
    assert "does not belong to this launcher" in text


def test_two_libraries_in_one_process() -> None:
    paths = [str(find_mpi(name).library) for name in ("openmpi", "mpich")]
    program = f"import ctypes; [ctypes.CDLL(path) for path in {paths}]; {INIT}"
    code, text = alone(program, OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0")
    assert code != 0
    assert "this process has loaded 2 MPI libraries" in text


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("openmpi", {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1"}),
        ("mpich", {"PMI_SIZE": "3", "PMI_RANK": "1"}),
    ],
)
def test_rank_that_mpirun_has_not_started(name: str, variables: dict[str, str]) -> None:
    """The process has the environment of a launched rank, but was not launched."""
    library = str(find_mpi(name).library)
    code, text = alone(INIT, BLUECOMM_MPI_LIB=library, **variables)
    assert code != 0
    assert "launcher started 3 processes, but MPI has 1 in its world" in text
    assert "does this process only have the launcher's variables?" in text


def test_the_other_ranks_report_a_failure_of_one_rank() -> None:
    mpi = find_mpi("openmpi")
    command = mpi.command(3, sys.executable, "-m", "tests.mpi.failures")
    variables = environment(BLUECOMM_TRANSPORT="mpi", MPI4PY_LIBMPI=str(mpi.library))
    done = run(command, variables)
    assert done.returncode != 0
    text = done.stdout
    for rank, other in ((0, 1), (1, 0), (2, 1)):
        assert (
            f"version on {rank}: MismatchError: init on rank {rank}: bluecomm of rank "
            f"{other} differs (expected " in text
        )
    for rank in (0, 2):
        assert (
            f"silent on {rank}: CommunicationTimeout: init: ranks 1 of the MPI "
            "communicator did not call bluecomm.init within 10 s" in text
        )
    assert "KeyError: 'mine'" in done.stderr
    # mpi4py finalizes MPI, which waits for all ranks.
    for rank in (0, 2):
        error = rf"never on {rank}: PeerLostError: allreduce 'never' on rank .*"
        cause = r"rank 1 on .* \(pid \d+\) raised KeyError: 'mine'"
        assert re.search(error + cause, text), text


@pytest.mark.parametrize("name", ["openmpi", "mpich", "debian-openmpi"])
def test_rank_that_never_starts_mpi(name: str) -> None:
    """MPI_Init waits forever for that rank."""
    program = f"""
import os, signal
if (os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]) == "1":
    signal.pause()
{INIT}
"""
    code, text = launch(name, 2, program, BLUECOMM_START_TIMEOUT_S="2")
    assert code != 0
    assert "init on rank 0: MPI_Init has not returned within 2 s" in text
    assert "On this machine: rank 1 (process " in text


@pytest.mark.parametrize("name", ["openmpi", "mpich", "debian-openmpi"])
def test_rank_that_lacks_bluecomm(name: str, tmp_path: Path) -> None:
    program = f"""
import os, pathlib, sys
from tests.support.deadlines import hear, say
folder = pathlib.Path({str(tmp_path)!r})
if (os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]) == "1":
    sys.modules["bluecomm"] = None
    say(folder, "it fails")
else:
    hear(folder, "it fails")
{INIT}
"""
    # MPICH's launcher ignores a rank that exits before it initializes MPI.
    code, text = launch(name, 2, program, BLUECOMM_START_TIMEOUT_S="2")
    assert code != 0
    assert "ModuleNotFoundError" in text


def test_mpi_without_threads() -> None:
    program = """
import os
import mpi4py
mpi4py.rc.thread_level = "funneled"
from mpi4py import MPI
import torch
import bluecomm as bf
os.environ["BLUECOMM_TRANSPORT"] = "mpi"
try:
    bf.init()
except bf.BluecommError as error:
    print(error, flush=True)
bf.shutdown()
os.environ["BLUECOMM_TRANSPORT"] = "auto"
bf.init()
assert not bf.mpi_threads_supported()
assert bf.allreduce(torch.ones(100_000), op=bf.Sum)[0] == 2
print("went on", flush=True)
"""
    library = str(find_mpi("openmpi").library)
    code, text = launch("openmpi", 2, program, MPI4PY_LIBMPI=library)
    assert code == 0, text
    assert text.count("BLUECOMM_TRANSPORT is mpi, but this world has no MPI for") == 2
    assert text.count("needs 'serialized' or 'multiple': other machines") == 1
    assert text.count("went on") == 2


@pytest.mark.parametrize("name", ["openmpi", "mpich", "debian-openmpi"])
def test_program_that_finalizes_mpi_first(name: str) -> None:
    """bluecomm does not call MPI after MPI_Finalize, which would abort the process."""
    program = """
from mpi4py import MPI
import torch
import bluecomm as bf
bf.init()
assert bf.allreduce(torch.ones(10), op=bf.Sum)[0] == 2
MPI.Finalize()
assert bf.allreduce(torch.ones(10), op=bf.Sum)[0] == 2
assert bf.mpi_threads_supported()
bf.shutdown()
try:
    bf.init()
except bf.BluecommError as error:
    print(error, flush=True)
"""
    library = str(find_mpi(name).library)
    code, text = launch(name, 2, program, MPI4PY_LIBMPI=library)
    assert code == 0, text
    assert text.count("MPI has been finalized in this process and cannot") == 2


@pytest.mark.parametrize("name", ["openmpi", "mpich", "debian-openmpi"])
def test_program_that_finalizes_mpi_during_operations(name: str) -> None:
    """The transport releases MPI before MPI is finalized, and tells the peers."""
    program = """
from mpi4py import MPI
import torch
import bluecomm as bf
bf.init()
world = MPI.COMM_WORLD
for size in (10, 100_000, 1_000_000):
    assert bf.allreduce(torch.ones(size), op=bf.Sum)[0] == 2
if bf.rank() == 0:
    left = [bf.allreduce_nonblocking(torch.ones(1_000_000)) for _ in range(3)]
    MPI.Finalize()
try:
    bf.allreduce(torch.ones(100_000), name="next")
except bf.PeerLostError as error:
    print(error, flush=True)
if bf.rank() == 1:
    MPI.Finalize()
bf.shutdown()
print("went on", flush=True)
"""
    library = str(find_mpi(name).library)
    code, text = launch(
        name, 2, program, MPI4PY_LIBMPI=library, BLUECOMM_TRANSPORT="mpi"
    )
    assert code == 0, text
    assert text.count("its program has called MPI_Finalize before bluecomm") == 1
    assert text.count("the program has called MPI_Finalize; call bluecomm.shut") == 1
    assert text.count("went on") == 2
