"""``data``: the table, and the results as JSON."""

import json

from bluecomm.bench.__main__ import main
from bluecomm.runtime import current_process


def test_samplers_are_compared(tmp_path, capsys):
    path = tmp_path / "data.json"
    options = ["--steps", "3", "--batch-size", "4", "--step-ms", "1"]
    try:
        assert main(["data", *options, "--json", str(path)]) == 0
    finally:
        current_process().leave()
    rows = json.loads(path.read_text())["balance"]
    assert len(rows) == 3
    # A single rank waits for no other one.
    assert [row["slowest"] for row in rows] == [1, 1, 1]
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows)


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path, capsys):
    assert main(["data", "--json", str(tmp_path / "no" / "x.json")]) == 2
    assert "data: " in capsys.readouterr().err
