"""Scripts of the predecessors run with only their import changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.launch import run_example

HERE = Path(__file__).parent

# One job for each set of options, since imports take most of the time of a short job.
JOBS = {
    (): [
        "bluefog_average_consensus.py",
        "bluefog_dynamic_training.py",
        "horovod_training.py",
        "horovod_elastic.py",
    ],
    ("--ranks-per-machine", "2"): ["bluefog_hierarchical.py"],
}


@pytest.mark.parametrize("options", JOBS)
def test_scripts_run_unchanged(options: tuple[str, ...], tmp_path: Path) -> None:
    scripts = [[str(HERE / "predecessors" / name)] for name in JOBS[options]]
    listed = tmp_path / "cases.json"
    listed.write_text(json.dumps(scripts))
    run_example(HERE / "run_many.py", str(listed), np=4, bfrun_options=options)
