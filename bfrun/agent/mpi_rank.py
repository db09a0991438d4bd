"""Runs between mpirun and one rank, so that bfrun learns how the rank ended.

mpirun starts this program in place of the rank's command. It starts the command, passes
its standard error on and keeps the end of it. When the command has ended, it writes a
report as one line of standard error, where bfrun, which runs mpirun, finds it.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import socket
import subprocess
import sys
import zlib
from typing import Any, Dict, List  # noqa: UP035

from bfrun.agent import kernel
from bfrun.agent.procs import kill_descendants
from bfrun.errors import LaunchError
from bfrun.gpu_shares import gpus_of_rank
from bfrun.probe import visible_gpus

# A report fits into one write to a pipe, which the kernel does not split.
_TAIL_NBYTES = 1500
_KILL_LIMIT_S = 1.5
_LOOK_MS = 50
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# Rank, local rank, world size and local world size in Open MPI and in MPICH.
_SOURCES = (
    ("OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
)
_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def encode_report(marker: str, report: Dict[str, Any]) -> bytes:  # noqa: UP006
    """Return the line that reports the end of a rank."""
    data = zlib.compress(json.dumps(report).encode("ascii"))
    word = base64.b64encode(data).decode("ascii")
    return f"{marker}{word}\n".encode("ascii")


def decode_report(word: bytes) -> Dict[str, Any]:  # noqa: UP006
    """Return the report in ``word``, the part of its line after the marker.

    Raises:
        ValueError: mpirun has split the line.
    """
    try:
        data = zlib.decompress(base64.b64decode(word, validate=True))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    report = json.loads(data)
    assert isinstance(report, dict)
    return report


def rank_environment(environ: Dict[str, str]) -> Dict[str, str]:  # noqa: UP006
    """Return the variables of a rank, including those that torch's scripts read."""
    result = dict(environ)
    for name, sources in zip(_NAMES, _SOURCES):  # noqa: B905 (Python 3.8)
        for source in sources:
            if source in environ:
                result[name] = environ[source]
    cores = len(os.sched_getaffinity(0))
    share = max(1, cores // int(result.get("LOCAL_WORLD_SIZE", "1")))
    result.setdefault("OMP_NUM_THREADS", str(share))
    return result


class MpiRank:
    """The command of one rank, and the last lines of its standard error."""

    def __init__(
        self,
        marker: str,
        gpus_per_rank: int,
        command: List[str],  # noqa: UP006
    ) -> None:
        self._marker = marker
        self._gpus_per_rank = gpus_per_rank
        self._command = command
        self._environ = rank_environment(dict(os.environ))
        self._tail = b""
        self._told = 0

    def run(self) -> int:
        """Run the command, report its end, and return the exit code for mpirun."""
        kernel.set_parent_death_signal(signal.SIGTERM)
        kernel.become_subreaper()
        kernel.set_name("bfrun-mpi-rank")
        try:
            self._take_gpus()
        except LaunchError as error:
            self._report(0, 1, str(error), 0)
            return 1
        read_fd, write_fd = os.pipe()
        try:
            child = subprocess.Popen(
                self._command,
                env=self._environ,
                stderr=write_fd,
                # The rank talks to mpirun over descriptors that it inherits.
                close_fds=False,
                preexec_fn=lambda: kernel.set_parent_death_signal(signal.SIGKILL),
            )
        except OSError as error:
            text = f"command '{self._command[0]}' could not be started: {error}"
            self._report(0, 127, text, 0)
            return 127
        for number in _ENDING:
            signal.signal(number, lambda signum, frame: self._pass_on(child, signum))
        os.close(write_fd)
        self._copy(read_fd, child)
        status = child.wait()
        left = kill_descendants(os.getpid(), set(), _KILL_LIMIT_S)
        self._report(child.pid, status, "", len(left))
        return 128 - status if status < 0 else status

    def _take_gpus(self) -> None:
        """Show this rank only its own GPUs, unless it may see all (0)."""
        if self._gpus_per_rank:
            mine = gpus_of_rank(
                socket.gethostname(),
                visible_gpus(self._environ),
                self._gpus_per_rank,
                int(self._environ.get("LOCAL_RANK", "0")),
                int(self._environ.get("LOCAL_WORLD_SIZE", "1")),
                is_shared=self._environ.get("BLUECOMM_SHARE_GPUS") == "1",
            )
            self._environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)

    def _pass_on(self, child: subprocess.Popen[bytes], signum: int) -> None:
        self._told = signum
        if child.returncode is None:
            os.kill(child.pid, signum)

    def _copy(self, fd: int, child: subprocess.Popen[bytes]) -> None:
        """Pass standard error on until the command ends or the pipe is closed."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        ended = False
        while not ended or poll.poll(0):
            if not ended and not poll.poll(_LOOK_MS):
                # The command's children may keep the pipe open.
                ended = child.poll() is not None
                continue
            data = os.read(fd, 65536)
            if not data:
                return
            self._tail = (self._tail + data)[-_TAIL_NBYTES:]
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()

    def _report(self, pid: int, status: int, error: str, left: int) -> None:
        report = {
            "rank": int(self._environ.get("RANK", "0")),
            "host": socket.gethostname(),
            "pid": pid,
            "status": status,
            "error": error,
            "told": self._told,
            "left": left,
            "tail": self._tail.decode("utf-8", "replace").splitlines()[-20:],
        }
        newline = b"" if not self._tail or self._tail.endswith(b"\n") else b"\n"
        os.write(2, newline + encode_report(self._marker, report))


def main(marker: str, gpus_per_rank: int, command: List[str]) -> None:  # noqa: UP006
    """Run one rank as a child process. Does not return."""
    os._exit(MpiRank(marker, gpus_per_rank, command).run())
