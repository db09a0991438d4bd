"""Jobs go on when a disk is full, and warn the user once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deadlines import DEADLINE_S
from tests.support.launch import launched, python
from tests.support.small_disk import small_disk

pytestmark = pytest.mark.faults

# Each rank prints 200 KB, and its output window has room for less.
PRINT = "import sys\nfor i in range(4000): print(i, 'x' * 50)\n"
FULL = "cannot be written: No space left on device"


@pytest.mark.parametrize("code", [0, 3])
def test_logs_on_a_full_disk(code, tmp_path):
    with small_disk(tmp_path) as disk:
        options = ["-np", "2", "--output-dir", str(disk / "logs")]
        with launched(tmp_path, *options, *python(f"{PRINT}sys.exit({code})")) as job:
            assert job.wait() == code
            assert job.out.count("x" * 50) == 8000
            assert job.err.count(FULL) == 1
            assert str(disk / "logs") in job.err


@pytest.mark.parametrize("lines", [1, 4000])
@pytest.mark.parametrize("code", [0, 3])
def test_stdout_on_a_full_disk(code, lines):
    body = f"{PRINT.replace('4000', str(lines))}sys.exit({code})"
    command = [sys.executable, "-m", "bfrun", "-np", "2", *python(body)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, timeout=DEADLINE_S
        )
    said = done.stderr.decode()
    assert done.returncode == code, said
    warning, *rest = [line for line in said.splitlines() if FULL in line]
    assert rest == []
    assert warning.startswith("bfrun: warning: stdout (/dev/full) ")
    assert "the job goes on" in warning


def test_both_streams_on_a_full_disk():
    command = [
        sys.executable,
        "-m",
        "bfrun",
        "-np",
        "1",
        *python(f"{PRINT}sys.exit(3)"),
    ]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=full, timeout=DEADLINE_S)
    assert done.returncode == 3


def test_a_plan_on_a_full_disk():
    command = [sys.executable, "-m", "bfrun", "-np", "1", "--dry-run", "true"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, timeout=DEADLINE_S
        )
    assert done.returncode == 1
    assert f"bfrun: error: stdout (/dev/full) {FULL}" in done.stderr.decode()


def test_an_agent_whose_temporary_folder_is_full(tmp_path):
    with small_disk(tmp_path, 4096) as disk:
        for number in range(1000):
            try:
                (disk / str(number)).write_bytes(b"x")
            except OSError:
                break
        with launched(
            tmp_path, "-np", "1", "true", environ={"TMPDIR": str(disk)}
        ) as job:
            # It finds another folder.
            assert job.wait() == 0, job.err
