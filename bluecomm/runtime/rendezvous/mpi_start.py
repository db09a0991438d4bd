"""Starts and ends MPI; both wait for all ranks and have no deadline."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bluecomm.errors import BluecommError
from bluecomm.runtime.rendezvous.mpi_library import (
    family_of,
    launched_rank,
    launched_size,
    launcher_family,
)

if TYPE_CHECKING:
    from bluecomm._native import MpiLibrary

_log = logging.getLogger("bluecomm")


def start_mpi(
    library: MpiLibrary, environ: Mapping[str, str], timeout_s: float
) -> bool:
    """Initialize MPI unless it is initialized already.

    ``MPI_Init`` cannot be interrupted. If it has not returned within ``timeout_s``,
    because some rank has not called it, this process reports that and exits; its
    launcher then ends the other ranks.

    Returns:
        Whether this call initialized MPI; the caller must then call ``end_mpi``.

    Raises:
        BluecommError: MPI has been finalized, or does not belong to the launcher.
    """
    expect_unfinalized(library)
    is_ours = not library.initialized
    launcher = launcher_family(environ)
    if is_ours:
        # Checked before, because MPI_Init under a foreign launcher may end the process.
        if launcher not in (None, family_of(library)):
            raise _foreign(library, f"{launcher}'s launcher started this process")
        library.init(timeout_s, lambda: _give_up(environ, timeout_s))
    expected = launched_size(environ)
    if expected is not None and library.world_size != expected:
        raise _foreign(
            library,
            f"{launcher}'s launcher started {expected} processes, but MPI has "
            f"{library.world_size} in its world (or does this process only have the "
            "launcher's variables?)",
        )
    return is_ours


def expect_unfinalized(library: MpiLibrary) -> None:
    """Check that MPI has not been finalized.

    Raises:
        BluecommError: MPI has been finalized.
    """
    if library.finalized:
        raise BluecommError(
            "init: MPI has been finalized in this process and cannot be started again; "
            "call bluecomm.init before MPI.Finalize",
            operation="init",
        )


def end_mpi(library: MpiLibrary, rank: int, warn_after_s: float) -> None:
    """Finalize MPI, which waits for all ranks, and warn if that takes long.

    The wait has no limit, because other ranks may still have work.
    """
    library.finalize(
        warn_after_s,
        lambda: _log.warning(
            "rank %d has finished, but has waited in MPI_Finalize for other ranks for "
            "%g s",
            rank,
            warn_after_s,
        ),
    )


def _foreign(library: MpiLibrary, what: str) -> BluecommError:
    return BluecommError(
        f"init: {what}: '{library.version}' does not belong to this launcher. Use the "
        "mpirun of that library, or name the launcher's own libmpi in "
        "BLUECOMM_MPI_LIB (and in MPI4PY_LIBMPI for mpi4py)",
        operation="init",
    )


def _give_up(environ: Mapping[str, str], timeout_s: float) -> None:
    rank = launched_rank(environ)
    absent = ranks_without_mpi(os.getpid())
    names = ", ".join(f"rank {rank} (process {pid})" for rank, pid in absent)
    where = f" On this machine: {names}." if names else ""
    who = "" if rank is None else f" on rank {rank}"
    text = (
        f"init{who}: MPI_Init has not returned within {timeout_s:g} s. It waits for "
        f"all ranks, and some have called neither bluecomm.init nor MPI_Init.{where} "
        "Every rank must run the same program, with bluecomm installed. MPI_Init "
        "cannot be interrupted, so this process exits."
    )
    print(f"bluecomm FATAL: {text}", file=sys.stderr, flush=True)
    os._exit(1)


def ranks_without_mpi(pid: int) -> list[tuple[int, int]]:
    """Return rank and process id of siblings of ``pid`` that have not loaded an MPI.

    Siblings are the processes that the launcher has started on this machine. Processes
    that cannot be inspected are left out.
    """
    parent = _parent(Path("/proc", str(pid)))
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if _parent(process) != parent or _has_loaded_mpi(process):
                continue
            rank = launched_rank(_environment(process))
            if rank is not None:
                found.append((rank, int(process.name)))
    return sorted(found)


def _parent(process: Path) -> int:
    # The name of the program, in parentheses, may contain any character.
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


def _has_loaded_mpi(process: Path) -> bool:
    return "/libmpi" in (process / "maps").read_text()


def _environment(process: Path) -> dict[str, str]:
    entries = (process / "environ").read_bytes().decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
