"""Scripts of the predecessors run with only their import changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.launch import run_example

HERE = Path(__file__).parent / "predecessors"


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("bluefog_average_consensus.py", []),
        ("bluefog_dynamic_training.py", []),
        ("bluefog_hierarchical.py", ["--ranks-per-machine", "2"]),
        ("horovod_training.py", []),
    ],
)
def test_runs_as_it_is(script: str, options: list[str]) -> None:
    run_example(HERE / script, np=4, bfrun_options=options)
