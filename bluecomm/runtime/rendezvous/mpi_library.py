"""Finds the libmpi of this process at run time, because bluecomm links to none.

The order is: ``BLUECOMM_MPI_LIB``; the library that this process has loaded already
(mpi4py's); the library of the launcher that started this process; that of Python's
environment (wheels from PyPI); that of the system.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bluecomm.errors import BluecommError

if TYPE_CHECKING:
    from bluecomm._native import MpiLibrary

_log = logging.getLogger("bluecomm")

OPEN_MPI = "Open MPI"
MPICH = "MPICH"
# File names of the libraries that fit a launcher, best first.
_NAMES = {
    OPEN_MPI: ("libmpi.so.40",),
    MPICH: ("libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1", "libmpi_abi.so.0"),
}
_ALL_NAMES = (*_NAMES[OPEN_MPI], *reversed(_NAMES[MPICH]))
# Programs of launchers that are parents of ranks.
_LAUNCHERS = {
    *("mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "prte"),
    *("mpiexec.hydra", "hydra_pmi_proxy"),
}
_SIZE_VARIABLES = {"OMPI_COMM_WORLD_SIZE": OPEN_MPI, "PMI_SIZE": MPICH}
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
# The variable that tells mpi4py which library to load.
_OF_MPI4PY = "MPI4PY_LIBMPI"
_INSTALL = "pip install bluecomm[mpi], or name a libmpi in BLUECOMM_MPI_LIB"


def launcher_family(environ: Mapping[str, str]) -> str | None:
    """Return the family of the launcher of this process, or None."""
    for variable, family in _SIZE_VARIABLES.items():
        if variable in environ:
            return family
    return None


def launched_size(environ: Mapping[str, str]) -> int | None:
    """Return the number of processes in the launcher's job, or None."""
    for variable in _SIZE_VARIABLES:
        if environ.get(variable, "").isdigit():
            return int(environ[variable])
    return None


def launched_rank(environ: Mapping[str, str]) -> int | None:
    """Return this process's rank in the launcher's job, or None."""
    for variable in _RANK_VARIABLES:
        if environ.get(variable, "").isdigit():
            return int(environ[variable])
    return None


def family_of(library: MpiLibrary) -> str:
    """Return the family of launchers that fit a library: Open MPI's or MPICH's."""
    return OPEN_MPI if library.version.startswith(OPEN_MPI) else MPICH


def open_mpi(given: str | None, environ: Mapping[str, str]) -> MpiLibrary:
    """Bind the libmpi of this process.

    Args:
        given: Path or name from the user; no other library is then tried.
        environ: Environment of this process, in which launchers set variables.

    Raises:
        BluecommError: No library exists, or none fits, or the process has loaded two.
    """
    from bluecomm._native import MpiLibrary, loaded_mpi_libraries

    loaded = _different(loaded_mpi_libraries())
    if len(loaded) > 1:
        raise BluecommError(
            f"init: this process has loaded {len(loaded)} MPI libraries, "
            f"{' and '.join(loaded)}, which cannot work side by side; let all its "
            f"modules use one ({_OF_MPI4PY} names that of mpi4py)",
            operation="init",
        )
    if given is not None and loaded and not _is_same(given, loaded[0]):
        raise BluecommError(
            f"init: BLUECOMM_MPI_LIB is {given}, but this process has loaded "
            f"{loaded[0]} already (mpi4py?); unset it, or make both the same",
            operation="init",
        )
    family = launcher_family(environ)
    tried = []
    for path in loaded or ([given] if given else _candidates(family)):
        try:
            library = MpiLibrary(path)
        except RuntimeError as error:
            tried.append(str(error))
            continue
        _log.debug("MPI: %s (%s, by the ABI of %s)", path, library.version, library.abi)
        # If mpi4py is imported later, it must load the same library.
        os.environ.setdefault(_OF_MPI4PY, path)
        return library
    what = (
        f"{family}'s launcher has started this process" if family else "MPI is required"
    )
    raise BluecommError(
        f"init: {what}, but no suitable libmpi was found; tried:"
        + "".join(f"\n  {text}" for text in tried)
        + f"\nInstall one ({_INSTALL}), or start the script with bfrun",
        operation="init",
    )


def _candidates(family: str | None) -> Iterator[str]:
    """Yield paths and names of libraries, beginning with the launcher's prefix."""
    names = _NAMES[family] if family else _ALL_NAMES
    prefix = _launcher_prefix()
    environment = Path(sys.prefix, "lib")
    if prefix is not None:
        for folder in ("lib", "lib64"):
            yield from _existing(prefix / folder, names)
        if prefix == Path("/usr"):
            yield from names
    yield from _existing(environment, names)
    yield from names


def _existing(folder: Path, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        path = folder / name
        if path.exists():
            yield str(path)


def _launcher_prefix() -> Path | None:
    """Return the installation prefix of the launcher among this process's parents."""
    pid = os.getppid()
    for _ in range(4):
        if pid <= 1:
            return None
        try:
            program = Path(os.readlink(f"/proc/{pid}/exe"))
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        if program.name in _LAUNCHERS:
            return program.parent.parent
        pid = int(stat.rpartition(")")[2].split()[1])
    return None


def _different(paths: list[str]) -> list[str]:
    """Return one path for each file, without links to the same file."""
    return list({os.path.realpath(path): path for path in paths}.values())


def _is_same(given: str, loaded: str) -> bool:
    if "/" in given:
        return os.path.realpath(given) == os.path.realpath(loaded)
    return Path(loaded).name == given
