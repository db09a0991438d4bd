"""A benchmark that is ended lets the program that it runs clean up."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.bench.ended_gently import run_ended_gently
from tests.support.deadlines import DEADLINE_S, wait_until

# Removes its own job at SIGTERM, as bfrun does.
_PROGRAM = """
import signal, sys
from pathlib import Path

def clean_up(number, frame):
    Path(sys.argv[1]).unlink()
    sys.exit(7)

signal.signal(signal.SIGTERM, clean_up)
Path(sys.argv[1]).touch()
while True:
    signal.pause()
"""
_BENCH = """
import os, signal, sys
from tests.bench.ended_gently import run_ended_gently

signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
run_ended_gently([sys.executable, *sys.argv[1:]], os.environ, 1000)
"""


def test_the_program_gets_sigterm(tmp_path):
    job = tmp_path / "job"
    command = [sys.executable, "-c", _BENCH, "-c", _PROGRAM, str(job)]
    with subprocess.Popen(command) as bench:
        wait_until(job.exists, "the program has not begun")
        bench.terminate()
        assert bench.wait(DEADLINE_S) == 143
    assert not job.exists()


def test_the_exit_code_of_the_program_is_returned():
    command = [sys.executable, "-c", "raise SystemExit(5)"]
    assert run_ended_gently(command, os.environ, DEADLINE_S) == 5
