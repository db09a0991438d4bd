"""How the benchmark starts an MPI world."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bluecomm.bench import mpi

OPEN_MPI = ["mpirun (Open MPI) 4.1.4", "mpirun (Open MPI) 5.0.11"]
PYTHON = sys.executable
HYDRA = "HYDRA build details:\n    Version: 5.0.2"


@pytest.mark.parametrize("version", OPEN_MPI)
def test_open_mpi_yields_where_ranks_share_cores(version: str) -> None:
    cores = len(os.sched_getaffinity(0))
    few = mpi.mpirun_command("mpirun", version, cores)
    assert few == ["mpirun", "-np", str(cores), "--oversubscribe"]
    many = mpi.mpirun_command("mpirun", version, cores + 1)
    assert many[2:] == [
        *(str(cores + 1), "--oversubscribe", "--mca", "mpi_yield_when_idle", "1")
    ]


def test_mpich_needs_no_flags() -> None:
    assert mpi.mpirun_command("/x/mpirun", HYDRA, 64) == ["/x/mpirun", "-np", "64"]


def test_the_mpi_world_is_not_that_of_the_launcher() -> None:
    given = {"PATH": "/bin", "MPI4PY_LIBMPI": "/lib/libmpi.so"}
    launchers = {"BLUECOMM_RANK": "1", "PMI_FD": "9", "SLURM_JOB_ID": "7"}
    own = mpi.mpi_environment({**given, **launchers})
    assert given.items() <= own.items()
    assert not launchers.keys() & own.keys()
    # Under an MPI launcher, init names that launcher's library, a foreign one here.
    own = mpi.mpi_environment({**given, "PMI_SIZE": "2", "PMI_RANK": "0"})
    assert "MPI4PY_LIBMPI" not in own
    assert (own.get("OMPI_ALLOW_RUN_AS_ROOT") == "1") == (os.geteuid() == 0)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the ``mpirun`` next to a Python that does not exist."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    return tmp_path / "mpirun"


def test_the_mpirun_of_the_environment_comes_first(environment: Path) -> None:
    assert mpi.find_mpirun() is None
    environment.write_text("")
    assert mpi.find_mpirun() == str(environment)


def test_missing_programs_are_named(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setattr(mpi, "find_spec", lambda name: None)
    assert mpi.why_not_here() == "mpi4py is not installed"
    monkeypatch.setattr(mpi, "find_spec", lambda name: object())
    assert mpi.why_not_here() == "no mpirun exists next to this Python or in PATH"


_FAKE = """#!{python}
import json, socket, sys
if "--version" not in sys.argv:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[-1])
    told = json.dumps(dict(size={size}, version="Fake MPI v1, of a test"))
    connection.sendall(told.encode() + b"\\n")
    connection.recv(100)
"""


def test_a_foreign_mpirun_is_detected(environment: Path) -> None:
    environment.write_text(_FAKE.format(python=PYTHON, size=3))
    environment.chmod(0o755)
    with pytest.raises(RuntimeError, match="started 3 ranks, expected 1"):
        mpi.MpiWorld(1)


def test_an_mpi_rank_that_ends_is_detected(environment: Path) -> None:
    environment.write_text(_FAKE.format(python=PYTHON, size=1))
    environment.chmod(0o755)
    world = mpi.MpiWorld(1)
    try:
        assert world.version == "Fake MPI v1"
        with pytest.raises(RuntimeError, match="rank 0 of the MPI world ended during"):
            world.ask({"repeats": 1})
    finally:
        world.close()


def test_an_mpirun_that_fails_is_quoted(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.write_text("#!/bin/sh\necho There are not enough slots >&2; exit 1\n")
    environment.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"did not start.*not enough slots"):
        mpi.MpiWorld(2)
