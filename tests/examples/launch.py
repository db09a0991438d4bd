"""Runs an example under bfrun, as a user would."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.deadlines import JOB_S

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    script: Path,
    *arguments: str,
    np: int,
    bfrun_options: Sequence[str] = (),
    limit_s: float = JOB_S,
) -> str:
    """Return the job's output; it must succeed within ``limit_s``."""
    command = [
        *(sys.executable, "-m", "bfrun", "-np", str(np), *bfrun_options),
        *(sys.executable, str(script), *arguments),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=limit_s, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_each(
    cases: Mapping[str, tuple[Path, Sequence[str]]],
    *,
    np: int,
    bfrun_options: Sequence[str] = (),
    limit_s: float = 1500.0,
) -> tuple[dict[str, Any], str]:
    """Return the examples' ``--json`` results, by case, and their whole output.

    The examples run one after the other in the same processes, since imports take most
    of the time of a short run.

    Args:
        cases: Script and arguments of each.
        np: Number of ranks.
        bfrun_options: More options of bfrun.
        limit_s: Limit for all of them together, in seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "cases.json")
        files = {case: Path(folder, f"result-{case}.json") for case in cases}
        commands = [
            [str(script), *arguments, "--json", str(files[case])]
            for case, (script, arguments) in cases.items()
        ]
        listed.write_text(json.dumps(commands))
        output = run_example(
            Path(__file__).parent / "run_many.py",
            str(listed),
            np=np,
            bfrun_options=bfrun_options,
            limit_s=limit_s,
        )
        return {case: json.loads(file.read_text()) for case, file in files.items()}, (
            output
        )
