"""Runs the transports' conformance suite over the libraries of each MPI.

Some runs use AddressSanitizer, which checks MPI's accesses to bluecomm's memory as far
as MPI makes them through the C library.
"""

from __future__ import annotations

import pytest

from tests.support.mpi import ROOT, environment, find_mpi, run, unavailable

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    ("name", "library", "build"),
    [
        ("openmpi", "libmpi.so.40", "native-asan"),
        ("mpich", "libmpi.so.12", "native-asan"),
        ("mpich", "libmpi_abi.so.1", "native"),
        ("debian-openmpi", "libmpi.so.40", "native"),
    ],
)
def test_transport_passes_the_suite(name: str, library: str, build: str) -> None:
    tests = ROOT / "build" / build / "tests"
    if not tests.exists():
        unavailable(f"build/{build}/tests is missing: make native-test")
    mpi = find_mpi(name)
    variables = environment(
        TEST_MPI_LIBRARY=str(mpi.library.parent / library),
        # MPI itself leaks memory.
        ASAN_OPTIONS="detect_leaks=0",
    )
    done = run(mpi.command(1, str(tests), "--filter", "mpi."), variables, limit_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "26 tests, 0 failed" in done.stdout
