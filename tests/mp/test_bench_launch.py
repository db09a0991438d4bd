"""``python -m bluecomm.bench launch``: it starts two ranks once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bluecomm.bench import launch
from bluecomm.bench.__main__ import main

pytestmark = pytest.mark.mp


def test_times_a_start_and_its_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "launch.json"
    arguments = ["launch", "--ranks", "2", "--rounds", "1", "--json", str(file)]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "seconds from the start of bfrun" in shown
    content = json.loads(file.read_text())
    assert content["format"] == "bluecomm.bench.launch/1"
    (row,) = content["launches"]
    measured = launch.Launch(**row)
    assert measured.ranks == 2
    assert measured.by_hand_s > 0
    parts = (
        measured.interpreter_s,
        measured.import_s,
        measured.init_s,
        measured.barrier_s,
    )
    assert all(part > 0 for part in parts)
    assert max(parts) < measured.first_collective_s < measured.whole_s
    assert f"{100 * measured.overhead:.0f} %" in shown


def test_the_output_of_a_failed_start_is_quoted() -> None:
    failing = [sys.executable, "-c", "import sys; sys.exit('no such fabric')"]
    with pytest.raises(RuntimeError, match="ended with 1: no such fabric"):
        launch.run_all([failing])
