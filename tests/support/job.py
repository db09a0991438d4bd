"""A ``bfrun`` started as users start it, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass
class Job:
    """A running ``bfrun``; its output goes to files, so nobody has to read it."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def output(self) -> str:
        """Standard output so far."""
        return (self.folder / "stdout").read_text()

    @property
    def errors(self) -> str:
        """Standard error so far."""
        return (self.folder / "stderr").read_text()

    def wait_for_lines(self, count: int, limit_s: float = 20.0) -> list[str]:
        """Wait until ``count`` whole lines of output are there; return them."""
        deadline = time.monotonic() + limit_s
        while (text := self.output).count("\n") < count:
            if time.monotonic() > deadline or self.process.poll() is not None:
                pytest.fail(
                    f"{count} lines expected, exit code {self.process.returncode}, "
                    f"got:\n{text}\n{self.errors}"
                )
            time.sleep(0.02)
        return text.splitlines()[:count]

    def wait(self, limit_s: float = 20.0) -> int:
        """Return the exit code."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"bfrun still runs after {limit_s} s:\n{self.errors}")


@contextlib.contextmanager
def bfrun_job(
    folder: Path,
    *arguments: str,
    environ: dict[str, str] | None = None,
    stdin: bytes = b"",
) -> Iterator[Job]:
    """Start ``bfrun`` with ``arguments``; it is killed if it still runs at the end."""
    (folder / "stdin").write_bytes(stdin)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with (
        (folder / "stdin").open("rb") as given,
        (folder / "stdout").open("wb") as out,
        (folder / "stderr").open("wb") as err,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "bfrun", *arguments],
            stdin=given,
            stdout=out,
            stderr=err,
            env={**os.environ, "PYTHONPATH": path, **(environ or {})},
            start_new_session=True,
        )
    try:
        yield Job(process, folder)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
