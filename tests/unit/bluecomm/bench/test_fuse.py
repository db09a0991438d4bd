"""``fuse``: the table, and the results as JSON."""

import json

from bluecomm.bench.__main__ import main
from bluecomm.bench.fuse import OPTIMIZERS


def test_all_optimizers_are_measured_in_both_forms(tmp_path, capsys):
    path = tmp_path / "fuse.json"
    sizes = ["--parameters", "3", "--shapes", "5", "2x3", "--rounds", "2"]
    assert main(["fuse", *sizes, "--json", str(path)]) == 0
    results = json.loads(path.read_text())
    assert results["shapes"] == [[5], [2, 3]]
    timed = results["timed"]
    assert [one["name"] for one in timed] == list(OPTIMIZERS)
    for one in timed:
        assert len(one["plain_ms"]) == len(one["fused_ms"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a step of 3 parameters of 5 and 2x3 float32, ")
    assert len(lines) == 2 + len(OPTIMIZERS)


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path, capsys):
    assert main(["fuse", "--json", str(tmp_path / "no" / "x.json")]) == 2
    assert "fuse: " in capsys.readouterr().err
