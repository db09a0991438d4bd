"""MPI as a peer: an MPI job that takes turns with the ranks of bluecomm.

The ranks of a bfrun job are not MPI processes, and some MPIs use TCP between processes
that connect later (``MPI_Comm_connect``). So rank 0 starts an ordinary MPI job of the
same size through ``mpirun`` on this machine. Its processes sleep in a read from a
socket while others have their turns.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from bfrun.wording import count
from bluecomm import barrier, broadcast_object, rank
from bluecomm.bench.mpi_rank import can_measure
from bluecomm.bench.operations import Case
from bluecomm.bench.results import MPI
from bluecomm.bench.timing import Turn
from bluecomm.runtime.rendezvous.mpi_library import launcher_family

# With these variables an MPI process would join the job of the benchmark itself.
_LAUNCHERS_OWN = ("BLUECOMM_", "PMI_", "PMIX_", "MPI_LOCAL", "HYDI_", "SLURM_")

_START_LIMIT_S = 120.0
_ANSWER_LIMIT_S = 300.0
_END_LIMIT_S = 10.0


def why_not_here() -> str:
    """Return why MPI cannot be measured on this machine; empty if it can."""
    if find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    if find_mpirun() is None:
        return "no mpirun exists next to this Python or in PATH"
    return ""


def find_mpirun() -> str | None:
    """Return the ``mpirun`` of this environment, or the system's if it has none."""
    own = Path(sys.executable).with_name("mpirun")
    return str(own) if own.exists() else shutil.which("mpirun")


def mpirun_command(mpirun: str, version: str, world_size: int) -> list[str]:
    """Return the start of the command line for an MPI of that version.

    Open MPI needs an option to start more ranks than cores, and another so that they
    do not spin: a spinning rank takes the core that its peer needs.
    """
    command = [mpirun, "-np", str(world_size)]
    if "Open MPI" in version or "open-mpi" in version:
        command += ["--oversubscribe"]
        if world_size > len(os.sched_getaffinity(0)):
            command += ["--mca", "mpi_yield_when_idle", "1"]
    return command


def mpi_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of ``mpirun``, without variables of other launchers."""
    foreign: tuple[str, ...] = _LAUNCHERS_OWN
    if launcher_family(environ) is not None:
        foreign += ("MPI4PY_LIBMPI",)  # set by init for that job
    own = {k: v for k, v in environ.items() if not k.startswith(foreign)}
    if os.geteuid() == 0:
        own.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return own


class MpiWorld:
    """Rank 0's control of the MPI job.

    Raises:
        RuntimeError: The job did not start; the text has the output of ``mpirun``.
    """

    def __init__(self, world_size: int) -> None:
        mpirun = find_mpirun()
        if mpirun is None:
            raise RuntimeError(why_not_here())
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            log = stack.enter_context(open(Path(folder, "log"), "w+b"))
            path = str(Path(folder, "socket"))
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(path)
            listener.listen(world_size)
            self._process = _start(mpirun, world_size, path, log)
            stack.callback(self._end)
            self._ranks: list[IO[str]] = []
            for _ in range(world_size):
                connection = stack.enter_context(self._accept(listener, log))
                connection.settimeout(_ANSWER_LIMIT_S)
                self._ranks.append(stack.enter_context(connection.makefile("rw")))
            told = [json.loads(lines.readline()) for lines in self._ranks]
            if told[0]["size"] != world_size:
                raise RuntimeError(
                    f"{mpirun} started {count(told[0]['size'], 'rank')}, expected "
                    f"{world_size}; "
                    "does it belong to the MPI that mpi4py uses?"
                )
            self.version = _short(told[0]["version"])
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End the job."""
        self._stack.close()

    def ask(self, command: dict[str, Any]) -> list[Any]:
        """Send a command to all ranks of the job and return their answers.

        Raises:
            RuntimeError: A rank has ended.
        """
        for lines in self._ranks:
            lines.write(json.dumps(command) + "\n")
            lines.flush()
        answers = [lines.readline() for lines in self._ranks]
        if not all(answers):
            raise RuntimeError(
                f"rank {answers.index('')} of the MPI world ended during {command}"
            )
        return [json.loads(answer) for answer in answers]

    def _accept(self, listener: socket.socket, log: IO[bytes]) -> socket.socket:
        deadline = time.monotonic() + _START_LIMIT_S
        listener.settimeout(0.2)
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                return listener.accept()[0]
        log.seek(0)
        said = log.read().decode(errors="replace").strip()[-2000:]
        raise RuntimeError(f"mpirun did not start the MPI world: {said}")

    def _end(self) -> None:
        """Wait for mpirun; its ranks end because their sockets have been closed."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                self._process.wait(_END_LIMIT_S)
                return
            except subprocess.TimeoutExpired:
                self._process.send_signal(number)
        self._process.wait()


def _start(
    mpirun: str, world_size: int, path: str, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    version = subprocess.run(
        [mpirun, "--version"], capture_output=True, text=True, timeout=30, check=False
    ).stdout
    return subprocess.Popen(
        [
            *mpirun_command(mpirun, version, world_size),
            *(sys.executable, "-m", "bluecomm.bench.mpi_rank", path),
        ],
        env=mpi_environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )


def _short(version: str) -> str:
    """Shorten an MPI's version text to, for example, ``Open MPI v5.0.11``."""
    words = version.split("\n")[0].split(",")[0].replace("Version:", " ").split()
    return " ".join(words)


class Mpi:
    """Measures MPI through mpi4py; all methods are collective in bluecomm's ranks.

    Raises:
        RuntimeError: The MPI world did not start; raised on all ranks.
    """

    name = MPI

    def __init__(self, world_size: int) -> None:
        self._world: MpiWorld | None = None
        failure = version = ""
        if rank() == 0:
            try:
                self._world = MpiWorld(world_size)
                version = self._world.version
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                failure = str(error)
        failure, self.version = broadcast_object((failure, version))
        if failure:
            raise RuntimeError(failure)

    def close(self) -> None:
        """End the MPI world."""
        if self._world is not None:
            self._world.close()

    def prepare(self, case: Case) -> Turn | None:
        """Return the turn that measures a case; see ``Implementation``."""
        if not can_measure(case):
            return None
        if self._world is not None:
            self._world.ask(
                {
                    "operation": case.operation.name,
                    "dtype": case.dtype_name,
                    "count": case.count,
                    "is_written": case.is_written,
                }
            )
        return self._turn

    def _turn(self, repeats: int) -> float:
        barrier()
        seconds = 0.0
        if self._world is not None:
            seconds = max(self._world.ask({"repeats": repeats}))
        # The other ranks sleep here until the MPI world has had its turn.
        barrier()
        return seconds
