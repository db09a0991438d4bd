"""Runs operations and optimizers under each MPI's launcher, in one launch per MPI."""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from pathlib import Path

import pytest

from tests.mpi.program import CASES, worlds_of_communicators
from tests.support.mpi import environment, find_mpi, run

pytestmark = pytest.mark.mpi

# The library that initializes MPI under each launcher.
FIRST = {"openmpi": "bluecomm", "mpich": "mpi4py", "debian-openmpi": "mpi4py"}
RANKS = 4


def outcome(name: str) -> list[dict[str, str]]:
    """Return the failures of each rank, by case."""
    failures, text = launch(name)
    assert not text, text
    return failures


@functools.cache
def launch(name: str) -> tuple[list[dict[str, str]], str]:
    """Run the program once under a launcher.

    Returns:
        The failures of each rank by case, and the text of a failure of the launch.
    """
    mpi = find_mpi(name)
    program = (sys.executable, "-m", "tests.mpi.program")
    variables = environment()
    if FIRST[name] == "mpi4py":
        variables["MPI4PY_LIBMPI"] = str(mpi.library)
    with tempfile.TemporaryDirectory() as folder:
        command = mpi.command(RANKS, *program, folder, FIRST[name])
        done = run(command, variables, limit_s=600)
        files = [Path(folder, f"{rank}.json") for rank in range(RANKS)]
        if done.returncode != 0 or not all(file.exists() for file in files):
            return [], f"exit code {done.returncode}: {done.stdout}\n{done.stderr}"
        return [json.loads(file.read_text()) for file in files], ""


@pytest.mark.parametrize("case", [case.__name__ for _, case in CASES])
@pytest.mark.parametrize("name", FIRST)
def test_case(name: str, case: str) -> None:
    failures = [failures[case] for failures in outcome(name)]
    assert failures == [""] * RANKS, "\n".join(failures)


@pytest.mark.parametrize("name", ["mpich", "debian-openmpi"])
def test_world_is_the_given_communicator(name: str) -> None:
    case = worlds_of_communicators.__name__
    failures = [failures[case] for failures in outcome(name)]
    assert failures == [""] * RANKS, "\n".join(failures)
