"""``data``: the table, and the results as JSON."""

import json

from bluecomm.bench.__main__ import main
from bluecomm.runtime import current_process


def test_samplers_and_partitions_are_compared(tmp_path, capsys):
    path = tmp_path / "data.json"
    options = ["--steps", "3", "--batch-size", "4", "--step-ms", "1", "--pairs", "2"]
    try:
        assert main(["data", *options, "--json", str(path)]) == 0
    finally:
        current_process().leave()
    found = json.loads(path.read_text())
    # A single rank waits for no other one.
    assert [row["slowest"] for row in found["balance"]] == [1, 1, 1]
    partitions = found["partitions"]
    assert len(partitions) == 3
    for row in partitions:
        assert len(row["static_s"]) == len(row["dynamic_s"]) == 2
        assert min(row["static_s"] + row["dynamic_s"]) > 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert len(first.splitlines()) == 2 + 3
    assert len(second.splitlines()) == 2 + len(partitions)


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path, capsys):
    assert main(["data", "--json", str(tmp_path / "no" / "x.json")]) == 2
    assert "data: " in capsys.readouterr().err
