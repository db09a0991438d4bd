"""Runs an example under bfrun, as a user would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    script: Path,
    *arguments: str,
    np: int,
    bfrun_options: Sequence[str] = (),
    limit_s: float = 120.0,
) -> str:
    """Return what the job printed; it must succeed within ``limit_s``."""
    command = [
        *(sys.executable, "-m", "bfrun", "-np", str(np), *bfrun_options),
        *(sys.executable, str(script), *arguments),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=limit_s, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
