"""Tests the advice that a report gives for common mistakes."""

import sys

import pytest

from bfrun.config import LaunchConfig
from bfrun.driver import hints
from bfrun.driver.hints import hint_of

EOF = ["Traceback (most recent call last):", "EOFError: EOF when reading a line"]
NO_MODULE = ["ModuleNotFoundError: No module named 'bluecomm'"]


def hint(tail, *command, rank=0, stdin=False):
    return hint_of(LaunchConfig(command or ("x",), stdin=stdin), rank, tail)


@pytest.mark.parametrize("tail", [EOF, ["bdb.BdbQuit"]])
def test_a_rank_that_reads_its_empty_input(tail):
    assert "start bfrun with --stdin to pass bfrun's input to rank 0" in hint(tail)
    assert "only rank 0 can have input: start bfrun with --stdin" in hint(tail, rank=1)
    # The rank has read its input to the end, for which there is no remedy.
    assert hint(tail, stdin=True) == ""


def test_other_failures_have_no_hint():
    assert hint([]) == ""
    assert hint(["ValueError: x"]) == ""
    assert hint(["ModuleNotFoundError: No module named 'x'"], "python3") == ""


def test_an_interpreter_without_bluecomm(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hint(NO_MODULE, "python", "x.py") == (
        f"'python' is {python}, in which bluecomm is not installed; start "
        f"{sys.executable}, which has it, or activate its environment"
    )
    assert hint(NO_MODULE, sys.executable, "x.py") == ""
    assert hint(NO_MODULE, "sh", "x.sh") == ""
    monkeypatch.setattr(hints, "find_spec", lambda name: None)
    assert hint(NO_MODULE, "python", "x.py") == ""
