"""``python -m bluecomm.bench``: one short turn of everything, and its sizes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bluecomm.bench.contenders import NAMES, contenders
from bluecomm.bench.sizes import parse_size, readable_size
from tests.support.launch import run_bfrun

pytestmark = pytest.mark.mp


def test_measures_each_library(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    job = run_bfrun(
        tmp_path,
        *("-np", "2", sys.executable, "-m", "bluecomm.bench", "--sizes", "4", "64K"),
        *("--rounds", "1", "--round-s", "0.01", "--json", str(file)),
        limit_s=60,
    )
    assert job.process.returncode == 0, job.err
    assert "on 2 ranks, float32, slowest rank" in job.out
    measured = json.loads(file.read_text())
    assert [(m["operation"], m["nbytes"], m["library"]) for m in measured] == [
        (name, nbytes, contender.library)
        for name in NAMES
        for nbytes in (4, 64 << 10)
        for contender in contenders(name)
    ]
    assert all(m["min_us"] > 0 for m in measured)


@pytest.mark.parametrize(
    ("text", "nbytes", "readable"),
    [("4", 4, "4 B"), ("64K", 64 << 10, "64 KiB"), ("3m", 3 << 20, "3 MiB")],
)
def test_sizes(text: str, nbytes: int, readable: str) -> None:
    assert parse_size(text) == nbytes
    assert readable_size(nbytes) == readable


@pytest.mark.parametrize("text", ["", "0", "K", "-4", "1.5M", "4T"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="size must be like"):
        parse_size(text)


def test_what_is_no_operation() -> None:
    with pytest.raises(ValueError, match="operation must be one of"):
        contenders("sorting")
