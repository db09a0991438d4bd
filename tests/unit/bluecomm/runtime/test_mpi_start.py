"""Starting and ending MPI, with a fake library."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import types

import pytest

import bluecomm as bf
from bluecomm.runtime.rendezvous.mpi_start import end_mpi, ranks_without_mpi, start_mpi

OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}


def library(**facts):
    known = {
        "finalized": False,
        "initialized": True,
        "world_size": 1,
        "version": "X",
        "init": lambda limit_s, late: "multiple",
    }
    return types.SimpleNamespace(**{**known, **facts})


def test_starts_mpi_once():
    assert start_mpi(library(initialized=False), {}, 1)
    assert not start_mpi(library(world_size=4), OPEN_MPI, 1)
    with pytest.raises(bf.BluecommError, match="cannot be started again"):
        start_mpi(library(finalized=True), {}, 1)
    with pytest.raises(
        bf.BluecommError, match=r"has 1 in its world .*: 'X' does not belong"
    ):
        start_mpi(library(), OPEN_MPI, 1)


def test_library_of_another_launcher_is_not_started():
    mpich = library(initialized=False, version="MPICH Version: 5.0", init=None)
    with pytest.raises(
        bf.BluecommError, match=r"Open MPI's launcher .* 'MPICH Version"
    ):
        start_mpi(mpich, OPEN_MPI, 1)
    open_mpi = library(initialized=False, version="Open MPI v5", world_size=4)
    assert start_mpi(open_mpi, OPEN_MPI, 1)


def test_a_long_finalize_is_reported(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("bluecomm"), "propagate", True)
    end_mpi(library(finalize=lambda limit_s, late: late()), 3, 60.0)
    assert "rank 3 has finished, but has waited in MPI_Finalize" in caplog.text
    assert "for other ranks for 60 s" in caplog.text


def test_ranks_without_mpi_are_found_among_siblings():
    sleeps = [sys.executable, "-S", "-c", "input()"]
    environ = {**os.environ, "PMI_RANK": "3"}
    with (
        subprocess.Popen(sleeps, stdin=subprocess.PIPE, env=environ) as rank,
        subprocess.Popen(sleeps, stdin=subprocess.PIPE) as other,
    ):
        assert ranks_without_mpi(other.pid) == [(3, rank.pid)]
