"""Runs an example under bfrun, as a user would."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    script: Path,
    *arguments: str,
    np: int,
    bfrun_options: Sequence[str] = (),
    limit_s: float = 300.0,
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


def run_example_with_each(
    script: Path,
    cases: Sequence[Sequence[str]],
    folder: Path,
    *,
    np: int,
    bfrun_options: Sequence[str] = (),
    limit_s: float = 300.0,
) -> list[dict[str, Any]]:
    """Return what an example writes to ``--json`` for each list of arguments.

    All runs share the ranks' processes, one after the other.
    """
    results = [folder / f"{number}.json" for number in range(len(cases))]
    listed = folder / "cases.json"
    listed.write_text(
        json.dumps(
            [
                [*case, "--json", str(result)]
                for case, result in zip(cases, results, strict=True)
            ]
        )
    )
    run_example(
        Path(__file__).parent / "run_many.py",
        *(str(script), str(listed)),
        np=np,
        bfrun_options=bfrun_options,
        limit_s=limit_s,
    )
    return [json.loads(result.read_text()) for result in results]
