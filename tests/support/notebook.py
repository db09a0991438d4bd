"""Runs ibfrun as a user does, in its own IPython folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipyparallel

from bfrun.notebook.profile import Profile
from tests.support.deadlines import DEADLINE_S, JOB_S, wait_until
from tests.support.launch import MARK, ROOT, marked_processes
from tests.support.python_path import python_path


class Notebook:
    """A user of ``ibfrun`` with a notebook, and every process that ibfrun starts."""

    def __init__(self, folder: Path) -> None:
        self._mark = uuid.uuid4().hex
        self._folder = folder
        self.profile = Profile("bluefog")

    @property
    def environ(self) -> dict[str, str]:
        """The environment that marks its processes."""
        return {**os.environ, MARK: self._mark, "PYTHONPATH": python_path(ROOT)}

    def ibfrun(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``ibfrun`` to its end; ``start`` ends once all engines serve."""
        process = self.begin(*arguments)
        out, err = process.communicate(timeout=JOB_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Run ``ibfrun`` in the background."""
        return subprocess.Popen(
            [sys.executable, "-m", "bfrun.notebook", *arguments],
            env=self.environ,
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self, *arguments: str) -> None:
        """Start engines and assert that all of them register."""
        done = self.ibfrun("start", *arguments)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.log}"

    @property
    def log(self) -> str:
        """The log of driver, controller and engines."""
        path = self.profile.log
        return path.read_text(errors="replace") if path.exists() else ""

    def left(self) -> dict[int, str]:
        """Return pid and command of every process that ibfrun has started."""
        return marked_processes(self._mark)

    def pid(self, word: str) -> int:
        """Return the process whose command contains ``word``."""
        found = [pid for pid, command in self.left().items() if word in command]
        assert len(found) == 1, self.left()
        return found[0]

    def wait_until_empty(self) -> None:
        """Wait until no process is left."""
        wait_until(lambda: not self.left(), lambda: f"left: {self.left()}\n{self.log}")

    def end(self) -> None:
        """Kill all processes, in whatever state they are."""
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def notebook_in(folder: Path) -> Iterator[Notebook]:
    """Give this process an IPython folder; end all engines at the end."""
    before = os.environ.get("IPYTHONDIR")
    os.environ["IPYTHONDIR"] = str(folder / "ipython")
    book = Notebook(folder)
    try:
        yield book
    finally:
        book.end()
        os.environ.pop("IPYTHONDIR")
        if before is not None:
            os.environ["IPYTHONDIR"] = before


@contextlib.contextmanager
def connected() -> Iterator[Any]:
    """Return a client, connected as a notebook connects."""
    client = ipyparallel.Client(profile="bluefog", timeout=DEADLINE_S)
    try:
        yield client
    finally:
        client.close()
