"""Starting and ending MPI, which wait for all ranks and know no deadline."""

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
    """Initialize MPI unless it is; return whether this call did, which then ends it.

    ``MPI_Init`` cannot be interrupted. When it has not returned within ``timeout_s``,
    because some rank does not call it, this process says so and ends, whereupon its
    launcher ends the others.

    Raises:
        BluecommError: MPI has ended already, or is not that of the launcher.
    """
    expect_unfinalized(library)
    is_ours = not library.initialized
    launcher = launcher_family(environ)
    if is_ours:
        # Before: an MPI that talks to another one's launcher may end the process.
        if launcher not in (None, family_of(library)):
            raise _foreign(library, f"{launcher}'s launcher started this process")
        library.init(timeout_s, lambda: _give_up(environ, timeout_s))
    expected = launched_size(environ)
    if expected is not None and library.world_size != expected:
        raise _foreign(
            library,
            f"{launcher}'s launcher started {expected} processes, but MPI has "
            f"{library.world_size} in its world (or was this one started without the "
            "launcher, with its variables?)",
        )
    return is_ours


def expect_unfinalized(library: MpiLibrary) -> None:
    """Refuse an MPI that has ended.

    Raises:
        BluecommError: It has.
    """
    if library.finalized:
        raise BluecommError(
            "init: MPI has been finalized in this process and cannot be started again; "
            "call bluecomm.init before MPI.Finalize",
            operation="init",
        )


def end_mpi(library: MpiLibrary, rank: int, warn_after_s: float) -> None:
    """Finalize MPI, which waits for all ranks; warn when that takes long.

    There is no limit: a rank may have work of its own left when the others have ended.
    """
    library.finalize(
        warn_after_s,
        lambda: _log.warning(
            "rank %d has ended, and waits in MPI_Finalize for ranks that have not for "
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
        "Every rank must run the same program, with bluecomm installed. As MPI_Init "
        "cannot be interrupted, this process ends."
    )
    print(f"bluecomm FATAL: {text}", file=sys.stderr, flush=True)
    os._exit(1)


def ranks_without_mpi(pid: int) -> list[tuple[int, int]]:
    """Return rank and process id of those that have not loaded an MPI.

    Of the processes that the launcher has started on this machine beside ``pid``, as
    far as they can be looked at.
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
    # The name of the program, in parentheses, may hold anything.
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


def _has_loaded_mpi(process: Path) -> bool:
    return "/libmpi" in (process / "maps").read_text()


def _environment(process: Path) -> dict[str, str]:
    entries = (process / "environ").read_bytes().decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
