"""Faults of the fake's device and NCCL on one rank, and the end of ranks."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.support.deadlines import DEADLINE_S
from tests.support.fakegpu.library import load


def set_fake(**variables: str) -> None:
    """Change settings of the fake on this rank, which counts its calls anew."""
    os.environ.update({f"FAKEGPU_{name}": value for name, value in variables.items()})
    load().reset()


def await_end(pid: int) -> None:
    """Wait until a process has ended, or is a zombie."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if (
                Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                == "Z"
            ):
                return
        except OSError:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} goes on")
