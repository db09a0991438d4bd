"""Tests the verdict on the output of mpirun and its ranks."""

import sys

import pytest

from bfrun.agent.mpi_rank import encode_report
from bfrun.errors import LaunchError
from bfrun.mpi.command import MpiCommand
from bfrun.mpi.implementation import find_implementation
from bfrun.mpi.job import MpiJob

MARK = "--mark--"
REPORT = {
    "rank": 2,
    "host": "h",
    "pid": 7,
    "status": 3,
    "error": "",
    "told": 0,
    "left": 0,
    "tail": ["last"],
}


def judge(said: bytes, exit_code: int, then: str = ""):
    """Return the verdict on an mpirun that prints something and ends."""
    body = f"import os, sys, time\nos.write(2, {said!r})\n{then}\nsys.exit({exit_code})"
    command = MpiCommand((sys.executable, "-c", body), {}, {})
    return MpiJob(command, MARK, {}, verbose=False).run()


def report(**changes):
    return encode_report(MARK, {**REPORT, **changes})


def test_reports_are_taken_out_of_what_is_shown(capfdbinary):
    said = b"one\npartly" + report() + b"two\nthe end"
    verdict = judge(said, 3)
    assert capfdbinary.readouterr().err == b"one\npartlytwo\nthe end"
    assert verdict.exit_code == 3
    assert "rank 2 on h (pid 7) ended with exit code 3" in verdict.report


def test_ranks_that_were_told_to_end_are_not_to_blame():
    verdict = judge(report(rank=0, status=-15, told=15) + report(), 1)
    assert verdict.exit_code == 3
    assert "later failures" not in verdict.report


def test_a_torn_report_is_said_to_be_one(capfd):
    torn = report()[:-20] + b"\n"
    verdict = judge(torn, 9)
    assert "mpirun has split the report of a rank" in capfd.readouterr().err
    assert verdict.exit_code == 9
    assert "before any rank reported" in verdict.report


def test_an_mpirun_that_waits_for_ranks_after_a_failure_is_ended(monkeypatch):
    monkeypatch.setattr("bfrun.mpi.job._FAILURE_GRACE_S", 0.2)
    verdict = judge(report(), 0, then="time.sleep(1000)")
    assert verdict.exit_code == 3
    assert "rank 2 on h (pid 7) ended with exit code 3" in verdict.report


def test_a_job_that_went_well_says_nothing():
    verdict = judge(report(status=0), 0)
    assert (verdict.exit_code, verdict.report) == (0, "")


def test_a_command_that_could_not_be_started_is_named():
    verdict = judge(report(status=127, error="command 'x' could not be started"), 127)
    assert "rank 2 on h: command 'x' could not be started" in verdict.report


def test_an_mpirun_that_cannot_be_started(tmp_path):
    command = MpiCommand((str(tmp_path / "mpirun"),), {}, {})
    with pytest.raises(LaunchError, match=r"mpirun: .*No such file"):
        MpiJob(command, MARK, {}, verbose=False).run()
    (tmp_path / "bin").mkdir()
    broken = tmp_path / "bin" / "mpirun"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    with pytest.raises(LaunchError, match=r"--version' fails: .*No such file"):
        find_implementation(str(tmp_path), {})
