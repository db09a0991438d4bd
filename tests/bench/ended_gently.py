"""Runs a program of which nothing stays behind if this one is ended first."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

# bfrun needs a few seconds to end its ranks.
_PATIENCE_S = 30.0


def run_ended_gently(
    command: Sequence[str], environ: Mapping[str, str], limit_s: float
) -> int:
    """Run a program and return its exit code.

    If an exception ends the wait, such as the one of ``exit_at_sigterm``, the program
    gets SIGTERM and may clean up; ``subprocess.run`` would kill it.

    Raises:
        subprocess.TimeoutExpired: It runs for longer than ``limit_s``.
    """
    with subprocess.Popen(command, env=dict(environ)) as process:
        try:
            return process.wait(limit_s)
        except BaseException:
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
