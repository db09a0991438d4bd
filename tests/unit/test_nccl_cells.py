"""Tests the benchmark of the NCCL plugin, cell by cell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench import nccl_cells

# The plugin is twice as fast as sockets, and each run leaves a line.
BENCH = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/runs"
case "$*" in
*"--way plugin"*) echo '{"mb_s": 20.0}' ;;
*) echo '{"mb_s": 10.0}' ;;
esac
"""


@pytest.fixture
def measure(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command, and returns runs and output."""
    bench = tmp_path / "net_bench"
    bench.write_text(BENCH)
    bench.chmod(0o755)
    runs = tmp_path / "runs"
    file = tmp_path / "cells.json"
    monkeypatch.setattr(nccl_cells, "BENCH", bench)

    def run(*options: str) -> tuple[list[str], str]:
        runs.write_text("")
        arguments = ["nccl_cells", "--json", str(file), "--minutes", "0", *options]
        monkeypatch.setattr(sys, "argv", arguments)
        assert nccl_cells.main() == 0
        return runs.read_text().splitlines(), capsys.readouterr().out

    return run


def test_each_cell_is_measured_once(measure):
    cell = ["--pairs", "3", "--places", "free", "--sizes", "1024"]
    runs, out = measure(*cell, "--loads", "0", "1")
    ways = [words[words.index("--way") + 1] for words in map(str.split, runs)]
    pair = ["plugin", "socket"]
    assert ways == 2 * [*pair, *reversed(pair), *pair]
    assert "| 1 KiB | 2.00 (2.00 to 2.00) | 2.00 (2.00 to 2.00) |" in out
    again, same = measure(*cell, "--loads", "0", "1")
    assert again == []
    assert same in out
    assert measure("--table")[1] == same


def test_a_failed_run_is_an_error(measure, tmp_path: Path):
    (tmp_path / "net_bench").write_text("#!/bin/sh\necho no link >&2\nexit 1\n")
    with pytest.raises(RuntimeError, match=r"net_bench .*: no link"):
        measure("--pairs", "1", "--sizes", "8", "--loads", "0")


def test_quartiles_are_shown():
    cell = nccl_cells.Cell(
        size=8 << 20,
        place="pinned",
        load=8,
        ratio=1.0,
        first_quartile=0.875,
        third_quartile=1.25,
        plugin_mb_s=1,
        sockets_mb_s=1,
        pairs=15,
        run_s=0.3,
        others=1.5,
    )
    text = nccl_cells.table([cell])
    assert "| message | one CPU, load 8 |" in text
    assert "| 8 MiB | 1.00 (0.88 to 1.25) |" in text
    assert "CPUs busy with others: 1.5 to 1.5" in text
