"""Runs a launcher as a user does, and reads the findings of its ranks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.deadlines import JOB_S
from tests.support.launch import ROOT
from tests.support.python_path import python_path

PROGRAM = "tests.launchers.programs"
LIGHTNING = (sys.executable, "-m", "tests.launchers.lightning_script")


def program(case: str) -> tuple[str, ...]:
    """Return the command of a case of ``programs.py``."""
    return (sys.executable, "-m", PROGRAM, case)


def run_launcher(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    limit_s: float = JOB_S,
) -> subprocess.CompletedProcess[str]:
    """Run a command line to its end, and return its outcome."""
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(ROOT),
        "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        **(environ or {}),
    }
    return subprocess.run(
        list(command),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env=environment,
        cwd=ROOT,
    )


def findings(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Return the findings of the ranks in rank order, without line prefixes."""
    texts = re.findall(r"\{.*\}", done.stdout)
    found = [json.loads(text) for text in texts]
    # Other programs, such as torchrun, print similar lines.
    return sorted((one for one in found if "rank" in one), key=lambda one: one["rank"])


def check_operations(
    done: subprocess.CompletedProcess[str], size: int, *, machines: int = 1
) -> list[dict[str, Any]]:
    """Check that the case ``operations`` passed on all ranks, and return findings."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = [one for one in findings(done) if "worlds" in one]
    assert [one["rank"] for one in found] == list(range(size)), done.stderr
    local = size // machines
    for rank, one in enumerate(found):
        assert one["size"] == size
        assert one["local"] == [rank % local, local]
        assert one["machine"] == [rank // local, machines]
        for world in one["worlds"]:
            assert all(world.values()), one
    return found


def check_lightning(
    done: subprocess.CompletedProcess[str], size: int, *, machines: int = 1
) -> list[dict[str, Any]]:
    """Check that Lightning saw all ranks and trained as the plain loop."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = findings(done)
    assert [one["rank"] for one in found] == list(range(size)), done.stderr
    local = size // machines
    for rank, one in enumerate(found):
        assert one["lightning"] == [rank, size]
        assert one["local"] == [rank % local, local]
        assert one["node"] == [rank // local, machines]
        assert one["backend"] == "bluecomm"
        assert one["equal"]
        assert one["distance"] > 0
    return found
