"""Runs bfrun as a user does, and finds every process that a job leaves behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.deadlines import JOB_S, wait_until
from tests.support.python_path import python_path

ROOT = Path(__file__).parents[2]
# Every process of a job inherits this variable, also in another session.
MARK = "BFRUN_TEST_MARK"


def marked_processes(mark: str) -> dict[int, str]:
    """Return pid and command of every process with this mark in its environment."""
    found = {}
    wanted = f"{MARK}={mark}".encode()
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and wanted in Path(f"/proc/{name}/environ").read_bytes():
                command = Path(f"/proc/{name}/cmdline").read_bytes()
                found[int(name)] = command.replace(b"\0", b" ").decode()[:200]
    return found


class Launched:
    """One running bfrun; its output is in files, its processes are marked."""

    def __init__(
        self,
        folder: Path,
        arguments: list[str],
        *,
        stdin: int = subprocess.DEVNULL,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        patient: bool = False,
    ) -> None:
        self.mark = uuid.uuid4().hex
        self._out, self._err = folder / "stdout", folder / "stderr"
        # bfrun makes its folder for sockets elsewhere if this path is long.
        self._temporary = Path(tempfile.mkdtemp(prefix="job-", dir="/tmp"))
        module = "tests.support.patient_bfrun" if patient else "bfrun"
        environment = {
            **os.environ,
            MARK: self.mark,
            "PYTHONPATH": python_path(ROOT),
            "TMPDIR": str(self._temporary),
            "PYTHONUNBUFFERED": "1",
            **(environ or {}),
        }
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=stdin,
                stdout=out,
                stderr=err,
                env=environment,
                cwd=cwd or folder,
                start_new_session=True,
            )

    @property
    def shared(self) -> dict[str, str]:
        """Variables of another bfrun that is to find this job."""
        return {"TMPDIR": str(self._temporary), MARK: self.mark}

    @property
    def out(self) -> str:
        """Its stdout so far."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """Its stderr so far."""
        return self._err.read_text(errors="replace")

    def wait(self, limit_s: float = JOB_S) -> int:
        """Wait until it exits and return the exit code."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"bfrun still runs after {limit_s} s\n{self.out}\n{self.err}")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until its output matches ``pattern``."""

        def look() -> re.Match[str] | None:
            return re.search(pattern, self.out + self.err, re.MULTILINE)

        self._until(lambda: look() is not None, f"no '{pattern}'")
        found = look()
        assert found is not None
        return found

    def _until(self, done: Callable[[], bool], what: str) -> float:
        return wait_until(done, lambda: f"{self.out}\n{self.err}\n{what}")

    def left(self) -> dict[int, str]:
        """Return pid and command of every process of this job except bfrun itself."""
        found = marked_processes(self.mark)
        found.pop(self.process.pid, None)
        return found

    def folders_left(self) -> list[str]:
        """Return the folders for sockets that the job has made and not removed."""
        names = [path.name for path in self._temporary.iterdir()]
        return [name for name in names if name.startswith(("bfrun-", "bluecomm-"))]

    def wait_until_empty(self) -> float:
        """Wait until no process of the job is left; return the seconds it took."""
        return self._until(lambda: not self.left(), "processes left")

    def pids(self, pattern: str) -> list[int]:
        """Return the processes whose command matches ``pattern``."""
        return [
            pid for pid, command in self.left().items() if re.search(pattern, command)
        ]

    def wait_for_pids(self, pattern: str, count: int) -> None:
        """Wait until ``count`` processes match."""
        self._until(lambda: len(self.pids(pattern)) == count, f"not {count} pids")

    def agent(self) -> tuple[int, int]:
        """Return the pids of agent and guard. Needs ``-v``."""
        found = self.wait_for(r"agent on \S+: pid (\d+), guard (\d+)")
        return int(found[1]), int(found[2])

    def signal(self, number: int) -> None:
        """Send a signal to bfrun itself."""
        self.process.send_signal(number)

    def end(self) -> None:
        """Kill all processes of the job, in whatever state they are."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._temporary)


@contextlib.contextmanager
def launched(
    folder: Path,
    *arguments: str,
    stdin: int = subprocess.DEVNULL,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    patient: bool = False,
) -> Iterator[Launched]:
    """Start ``bfrun`` with ``arguments``; kill what is left of it at the end.

    Args:
        folder: For its output and temporary files.
        *arguments: Its command line.
        stdin: Descriptor of its standard input.
        environ: Additional environment variables.
        cwd: Its working folder. Default: ``folder``.
        patient: Whether survivors of a failure get unlimited time to end.
    """
    job = Launched(
        folder, list(arguments), stdin=stdin, environ=environ, cwd=cwd, patient=patient
    )
    try:
        yield job
    finally:
        job.end()


def run_bfrun(folder: Path, *arguments: str) -> Launched:
    """Run ``bfrun`` to its end and assert that it left no process and no folder."""
    with launched(folder, *arguments) as job:
        job.wait()
        assert job.left() == {}
        assert job.folders_left() == []
        return job


def python(body: str) -> tuple[str, ...]:
    """Return the command that runs ``body`` in this interpreter."""
    return (sys.executable, "-c", body)
