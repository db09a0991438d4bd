"""Finds the MPI that starts the ranks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bfrun.errors import LaunchError

_VERSION_LIMIT_S = 20.0


@dataclass(frozen=True)
class MpiImplementation:
    """An installed MPI.

    Attributes:
        mpirun: Path of its ``mpirun``.
        kind: Family of options that it takes.
        version: Its version.
    """

    mpirun: str
    kind: Literal["openmpi", "mpich"]
    version: tuple[int, ...]

    def __str__(self) -> str:
        name = {"openmpi": "Open MPI", "mpich": "MPICH"}[self.kind]
        return f"{name} {'.'.join(map(str, self.version))} ({self.mpirun})"


def find_implementation(
    prefix: str | None, environ: Mapping[str, str]
) -> MpiImplementation:
    """Return the MPI to use: the first on ``PATH``, or the interpreter's own.

    Args:
        prefix: Folder of an MPI's installation (``--prefix``), which takes precedence.
        environ: Environment with ``PATH``.

    Raises:
        LaunchError: There is no MPI, or its options are not known.
    """
    own = os.path.join(sys.prefix, "bin")
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    site = os.pathsep.join(folder for folder in folders if folder != own)
    path = os.path.join(prefix, "bin") if prefix else f"{site}{os.pathsep}{own}"
    mpirun = shutil.which("mpirun", path=path) or shutil.which("mpiexec", path=path)
    if mpirun is None:
        raise LaunchError(
            f"--launcher mpi: no mpirun in {path}; load the site's MPI (module load), "
            "install one with pip install 'bluecomm[mpi]', or name its folder with "
            "--prefix"
        )
    return parse_version(mpirun, _ask_version(mpirun))


def _ask_version(mpirun: str) -> str:
    try:
        done = subprocess.run(
            [mpirun, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(
            f"--launcher mpi: '{mpirun} --version' fails: {error}"
        ) from None
    return done.stdout + done.stderr


def parse_version(mpirun: str, said: str) -> MpiImplementation:
    """Return the implementation that the output of ``mpirun --version`` names.

    Raises:
        LaunchError: It is neither Open MPI 4 or newer nor MPICH's hydra.
    """
    open_mpi = re.search(r"\(Open MPI\)\s+(\d+)\.(\d+)(?:\.(\d+))?", said)
    hydra = re.search(r"HYDRA.*?Version:\s+(\d+)\.(\d+)(?:\.(\d+))?", said, re.S)
    found = open_mpi or hydra
    if found is None:
        raise LaunchError(
            f"--launcher mpi: '{mpirun} --version' names neither Open MPI nor MPICH "
            f"('{said.strip()[:80]}'); name another MPI's folder with --prefix"
        )
    version = tuple(int(number) for number in found.groups() if number is not None)
    if open_mpi and version < (4,):
        raise LaunchError(
            f"--launcher mpi: {mpirun} is Open MPI {'.'.join(map(str, version))}, but "
            "bfrun needs 4 or newer; name another MPI's folder with --prefix"
        )
    return MpiImplementation(mpirun, "openmpi" if open_mpi else "mpich", version)
