"""``cache``: the table, and the results as JSON."""

import json

from bluecomm.bench.__main__ import main
from bluecomm.runtime import current_process


def test_all_readers_are_measured(tmp_path, capsys):
    path = tmp_path / "data.json"
    options = ["--samples", "2", "--rounds", "2", "--load-ms", "1"]
    try:
        assert main(["cache", *options, "--json", str(path)]) == 0
    finally:
        current_process().leave()
    results = json.loads(path.read_text())
    readers = ["plain tensors", "raw lmdb", "memory", "lmdb"]
    assert [(one["nbytes"], one["reader"]) for one in results["reads"]] == [
        (nbytes, reader) for nbytes in (4096, 65536, 1048576) for reader in readers
    ]
    assert all(len(one["seconds"]) == 4 for one in results["reads"])
    # Two samples, whose load sleeps.
    assert results["epochs"]["first_s"] >= 0.002
    out = capsys.readouterr().out
    assert "epochs of 2 samples of 1 ms: first" in out


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path, capsys):
    assert main(["cache", "--json", str(tmp_path / "no" / "x.json")]) == 2
    assert "cache: " in capsys.readouterr().err
