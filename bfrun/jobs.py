"""Finds jobs that run already: takes them over, lists them, ends them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from dataclasses import replace

from bfrun import __version__
from bfrun.config import LaunchConfig
from bfrun.driver.driver import attach_job, show_verdict
from bfrun.driver.job_record import (
    HeldRecord,
    NoSuchJob,
    find_jobs,
    read_record,
)
from bfrun.errors import LaunchError
from bfrun.launch.detaching import check_name
from bfrun.output.streams import remark, whole_stdout
from bfrun.text_table import align

# A driver needs 4 s from SIGTERM to SIGKILL, then the guards need a moment.
_STOP_S = 60.0
# A driver that has detached unlocks the record a moment later.
_UNLOCK_S = 5.0
_LOOK_S = 0.05
_COMMAND_WIDTH = 80
# No rank has this number, so the output of none is shown.
_NO_RANK = (-1,)


def attach(name: str, config: LaunchConfig) -> int:
    """Take over a job whose driver has ended, and return the job's exit code.

    Args:
        name: Name of the job.
        config: Settings for the output.

    Raises:
        LaunchError: There is no such job, its driver lives, or its agents do not
            answer.
    """
    deadline = time.monotonic() + _UNLOCK_S
    while (held := _take_over("--attach", name)) is None:
        if time.monotonic() > deadline:
            pid = read_record(name).pid
            raise LaunchError(
                f"--attach {name}: process {pid} drives this job; end it with "
                f"kill -HUP {pid}, and attach again"
            )
        time.sleep(_LOOK_S)
    return show_verdict(attach_job(held, config))


def stop(name: str, config: LaunchConfig) -> int:
    """End a job, with or without a driver.

    Returns:
        0 if the job has ended, otherwise 128 + the signal that came before it had.

    Raises:
        LaunchError: There is no such job, or it does not end.
    """
    told = 0  # the driver that has been told to end the job
    deadline = time.monotonic() + _STOP_S
    try:
        while (held := _take_over("--stop", name)) is None:
            pid = read_record(name).pid
            if pid != told:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                told = pid
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"--stop {name}: process {told}, which drives this job, has not "
                    f"ended it within {_STOP_S:g} s after SIGTERM; kill -KILL {told}, "
                    "and try again"
                )
            time.sleep(_LOOK_S)
    except NoSuchJob:
        if not told:
            raise
        remark(f"bfrun: process {told} has ended job {name}")
        return 0
    try:
        verdict = attach_job(held, replace(config, only_rank=_NO_RANK), is_to_end=True)
    except NoSuchJob:
        _await_end(name, deadline)
        remark(f"bfrun: job {name} has ended")
        return 0
    exit_code = show_verdict(verdict)
    return 0 if held.is_removed else exit_code


def _await_end(name: str, deadline: float) -> None:
    """Wait for agents that hang up because they are ending their ranks.

    Raises:
        LaunchError: Some have not ended at the deadline.
    """
    with contextlib.suppress(NoSuchJob):
        while time.monotonic() < deadline:
            held = _take_over("--stop", name)
            if held is not None:
                held.release()
            time.sleep(_LOOK_S)
        raise LaunchError(
            f"--stop {name}: its agents have not ended within {_STOP_S:g} s, and take "
            "no driver; try again"
        )


def _take_over(option: str, name: str) -> HeldRecord | None:
    """Return the locked record of a job, or None if its driver lives."""
    check_name(option, name)
    held = HeldRecord.take_over(name)
    if held is not None and held.record.version != __version__:
        version = held.record.version
        held.release()
        raise LaunchError(
            f"{option} {name}: bfrun {version} has started this job, and this is bfrun "
            f"{__version__}; use that version"
        )
    if held is not None:
        held.note_driver()
    return held


def list_jobs() -> int:
    """Print this user's jobs on this host that can detach, and return 0."""
    jobs = find_jobs()
    if not jobs:
        remark("bfrun: no job that can detach runs on this host")
        return 0
    rows = [("JOB", "RANKS", "STARTED", "BFRUN", "COMMAND")]
    for record, is_driven in jobs:
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started))
        driver = f"process {record.pid}" if is_driven else "detached"
        command = " ".join(shlex.join(record.settings["command"]).split())
        if len(command) > _COMMAND_WIDTH:
            command = command[:_COMMAND_WIDTH] + "..."
        rows.append((record.name, str(record.world_size), started, driver, command))
    with whole_stdout():
        print("\n".join(align(rows, left=5)))
    return 0
