"""The choice of libmpi, and the error if none fits."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest

import bluecomm as bf
from bluecomm import _native
from bluecomm.runtime.rendezvous import mpi_library
from bluecomm.runtime.rendezvous.mpi import fortran_handle
from bluecomm.runtime.rendezvous.mpi_library import (
    launched_size,
    launcher_family,
    open_mpi,
)

OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}
MPICH = {"PMI_SIZE": "3", "PMI_RANK": "0"}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with only those libraries that a test declares usable."""
    here = types.SimpleNamespace(loaded=[], usable=set(), asked=[], prefix=tmp_path)

    def open_library(path):
        here.asked.append(path)
        if path not in here.usable:
            raise RuntimeError(f"{path}: cannot open shared object file")
        return types.SimpleNamespace(path=path, version="1", abi="some MPI")

    monkeypatch.setenv("MPI4PY_LIBMPI", "")  # so that it is restored
    monkeypatch.delenv("MPI4PY_LIBMPI")
    monkeypatch.setattr(_native, "MpiLibrary", open_library)
    monkeypatch.setattr(_native, "loaded_mpi_libraries", lambda: here.loaded)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(mpi_library, "_launcher_prefix", lambda: None)
    return here


def test_launchers_are_known_by_their_variables():
    assert launcher_family(OPEN_MPI) == "Open MPI"
    assert launcher_family(MPICH) == "MPICH"
    assert launcher_family({"PMIX_RANK": "1"}) is None
    assert (launched_size(OPEN_MPI), launched_size(MPICH)) == (4, 3)
    assert launched_size({}) is None


def test_the_given_library_is_the_only_candidate(machine):
    machine.usable = {"/opt/libmpi.so", "libmpi.so.40"}
    assert open_mpi("/opt/libmpi.so", OPEN_MPI).path == "/opt/libmpi.so"
    with pytest.raises(bf.BluecommError, match=r"/opt/other\.so: cannot open"):
        open_mpi("/opt/other.so", OPEN_MPI)


def test_the_loaded_library_comes_first(machine):
    machine.loaded = ["/opt/libmpi.so.12"]
    machine.usable = {"/opt/libmpi.so.12", "libmpi.so.40"}
    assert open_mpi(None, OPEN_MPI).path == "/opt/libmpi.so.12"
    # Libraries that this process loads later must use it, too.
    assert os.environ["MPI4PY_LIBMPI"] == "/opt/libmpi.so.12"
    assert open_mpi("libmpi.so.12", {}).path == "/opt/libmpi.so.12"
    with pytest.raises(bf.BluecommError, match=r"BLUECOMM_MPI_LIB is libmpi\.so\.40"):
        open_mpi("libmpi.so.40", {})


def test_two_libraries_in_a_process_are_refused(machine):
    machine.loaded = ["/a/libmpi.so.40", "/b/libmpi.so.12"]
    with pytest.raises(bf.BluecommError, match=r"2 MPI libraries, /a/.* and /b/"):
        open_mpi(None, {})


def test_launcher_then_environment_then_system(machine, monkeypatch):
    site, venv = machine.prefix / "site", machine.prefix / "venv"
    for folder in (site, venv):
        (folder / "lib").mkdir(parents=True)
        for name in ("libmpi.so.40", "libmpi.so.12"):
            (folder / "lib" / name).touch()
    with pytest.raises(bf.BluecommError, match="MPICH's launcher has started"):
        open_mpi(None, MPICH)
    assert machine.asked[0] == str(venv / "lib" / "libmpi.so.12")
    assert "libmpi.so.40" not in {Path(path).name for path in machine.asked}
    machine.usable = {str(folder / "lib" / "libmpi.so.40") for folder in (site, venv)}
    assert open_mpi(None, {}).path == str(venv / "lib" / "libmpi.so.40")
    monkeypatch.setattr(mpi_library, "_launcher_prefix", lambda: site)
    assert open_mpi(None, OPEN_MPI).path == str(site / "lib" / "libmpi.so.40")
    machine.asked.clear()
    monkeypatch.setattr(mpi_library, "_launcher_prefix", lambda: Path("/usr"))
    machine.usable = {"libmpi.so.40"}
    open_mpi(None, OPEN_MPI)
    assert str(venv / "lib" / "libmpi.so.40") not in machine.asked


def test_a_missing_library_says_how_to_install_one(machine):
    with pytest.raises(bf.BluecommError, match=r"pip install bluecomm\[mpi\]") as info:
        open_mpi(None, {})
    assert "libmpi.so.40: cannot open" in str(info.value)
    assert "libmpich.so.12: cannot open" in str(info.value)


def test_only_communicators_of_mpi4py_are_taken():
    assert fortran_handle(types.SimpleNamespace(py2f=lambda: 7)) == 7
    for wrong in ([0, 1], "world", types.SimpleNamespace(py2f=None)):
        with pytest.raises(TypeError, match="must be a communicator of mpi4py"):
            fortran_handle(wrong)
