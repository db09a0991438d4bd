"""Starts and stops the driver of a notebook job in the background."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bfrun.errors import LaunchError
from bfrun.notebook.clients import await_engines
from bfrun.notebook.profile import Profile
from bfrun.notebook.state import clear_state, describe_running, read_state

FOREGROUND = "--foreground"
# Its command line comes as input, because ps would show the values of -x as long as the
# job lives.
_PROGRAM = (
    f"import json, sys; sys.path.append({str(Path(__file__).parents[2])!r}); "
    "from bfrun.notebook.cli import main; sys.exit(main(json.load(sys.stdin)))"
)
_LOOK_S = 0.1
_TAIL_NBYTES = 4000
# The ranks get 4 s from SIGTERM to SIGKILL, the agents 3 s to report what is left.
_STOP_LIMIT_S = 30.0


def start_in_background(
    arguments: Sequence[str], profile: Profile, limit_s: float
) -> int:
    """Start a driver that outlives this process, and wait until its engines are ready.

    Args:
        arguments: Command line of ``ibfrun``, which the driver gets as well.
        profile: Profile of the job.
        limit_s: Seconds within which all engines must be ready.

    Returns:
        Number of engines.

    Raises:
        LaunchError: The profile already has a job, or this one did not start. No
            process of it is left.
    """
    profile.make()
    job, running = read_state(profile.state)
    if running:
        raise LaunchError(describe_running(job, profile.name))
    with profile.open_log() as log:
        driver = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, FOREGROUND],  # for readers of ps
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        assert driver.stdin is not None
        with driver.stdin:
            driver.stdin.write(json.dumps([*arguments, FOREGROUND]).encode())
        return _await_engines(driver, profile, limit_s)
    except BaseException:
        _end(driver)
        raise


def _await_engines(
    driver: subprocess.Popen[bytes], profile: Profile, limit_s: float
) -> int:
    deadline = time.monotonic() + limit_s
    come: set[int] = set()
    ranks = 0
    while time.monotonic() < deadline:
        code = driver.poll()
        if code is not None:
            said = _tail(profile.log)
            raise LaunchError(f"the job did not start (exit {code}):\n{said}")
        job, _ = read_state(profile.state)
        if job is not None and job.pid == driver.pid and job.serving:
            ranks = job.ranks
            come = await_engines(
                profile, ranks, deadline, lambda: driver.poll() is None
            )
            if come == set(range(ranks)):
                return ranks
        time.sleep(_LOOK_S)
    missing = sorted(set(range(ranks)) - come) or "all"
    raise LaunchError(
        f"engines {missing} were not ready within {limit_s:g} s; check that "
        "ipyparallel is installed on their hosts, and that these can connect to this "
        "machine (--start-timeout sets the limit). The end of the log:\n"
        f"{_tail(profile.log)}"
    )


def _end(driver: subprocess.Popen[bytes]) -> None:
    driver.terminate()
    try:
        driver.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()


def _tail(path: Path) -> str:
    return path.read_bytes()[-_TAIL_NBYTES:].decode("utf-8", "replace").strip()


def stop_background(profile: Profile) -> int:
    """End the job of a profile, and return how many engines it had.

    Raises:
        LaunchError: There is no such job, or it runs on another host.
    """
    job, running = read_state(profile.state)
    if not running:
        text = f"no job of profile '{profile.name}' is running"
        if job is not None:
            clear_state(profile.state)
            text += (
                f"; the last one (pid {job.pid} on {job.host}) did not shut down "
                "cleanly, so its state was removed"
            )
        if profile.log.exists():
            text += f"; the log of the last one is {profile.log}"
        raise LaunchError(text)
    if job is None:
        raise LaunchError(
            f"the job of profile '{profile.name}' is starting or ending; try again"
        )
    if job.host != socket.gethostname():
        raise LaunchError(
            f"the job of profile '{profile.name}' was started on {job.host}; run "
            "ibfrun stop there"
        )
    for number in (signal.SIGTERM, signal.SIGKILL):
        if _signal_driver(job.pid, number, profile):
            return job.ranks
    raise LaunchError(
        f"the driver (pid {job.pid}) does not end; check whether its disk hangs"
    )


def _signal_driver(pid: int, number: int, profile: Profile) -> bool:
    """Signal the driver and wait for its end; return False after a timeout."""
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            # Not locked: it has ended, and this may be another one with its number.
            if read_state(profile.state)[1]:
                signal.pidfd_send_signal(process, number)
                return bool(select.select([process], [], [], _STOP_LIMIT_S)[0])
        finally:
            os.close(process)
    return True
