"""Runs the user's script that says which hosts a job may use now.

The script prints one host for each line, as ``host:slots``. It runs in a process of its
own, every few seconds. If it fails, the last good answer stands.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import IO

from bfrun.driver.group_guard import GroupGuard
from bfrun.errors import LaunchError
from bfrun.hosts import Host, parse_host_lines
from bfrun.wording import count

OPTION = "--host-discovery-script"
# Seconds from the end of one run to the start of the next.
EVERY_S = 2.0
# Seconds that one run may take.
LIMIT_S = 10.0
# How much of its output is read, and of its errors shown.
_OUTPUT_NBYTES = 1 << 20
_ERRORS_NBYTES = 500
_LOOK_S = 0.02
# Seconds in which a script ends that was killed. One that waits for a disk or for NFS
# may not end before its wait does.
_KILL_S = 1.0


def find_script(given: str) -> str:
    """Return the absolute path of a script.

    Args:
        given: A path, or the name of a program on ``PATH``.

    Raises:
        LaunchError: There is no such file, or it cannot be executed.
    """
    path = given if os.path.exists(given) else shutil.which(given)
    if path is None:
        raise LaunchError(
            f"{OPTION} '{given}' does not exist; give the path of a program without "
            "arguments that prints one 'host:slots' for each line"
        )
    path = os.path.abspath(path)
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise LaunchError(
            f"{OPTION} '{given}' is not an executable file; make it one with "
            f"chmod +x {given}, and begin it with a line such as #!/bin/sh"
        )
    return path


def parse_answer(text: str) -> tuple[Host, ...]:
    """Return the hosts that a script has printed.

    Raises:
        LaunchError: A line has a wrong form or lacks the slots, or there is no host.
    """
    hosts = parse_host_lines(text.splitlines(), "its output")
    if not hosts:
        raise LaunchError("it printed no host")
    for host in hosts:
        if host.slots is None:
            raise LaunchError(f"it printed '{host}' without slots; print {host}:SLOTS")
    return hosts


class HostDiscovery:
    """The runs of one script. Owns its process, and never waits for it.

    If this process is killed, a guard ends the script with its children.

    Args:
        script: Path of the script.
        say: Shows a warning to the user.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self,
        script: str,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._script = script
        self._say = say
        self._clock = clock
        self._due = clock()
        self._run: _Run | None = None
        self._guard: GroupGuard | None = None
        self._has_warned = False

    def step(self) -> tuple[Host, ...] | None:
        """Start a run that is due, and look after the present one.

        Returns:
            The answer of a run that has just ended well, otherwise None.
        """
        now = self._clock()
        if self._run is None:
            if now >= self._due:
                self._start(now)
            return None
        try:
            answer = self._run.answer(now)
        except LaunchError as error:
            self._finish(now)
            self._warn(error)
            return None
        if answer is not None:
            self._finish(now)
            self._has_warned = False
        return answer

    def close(self) -> None:
        """End the script if it runs, and its guard."""
        self._end_run()
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def _start(self, now: float) -> None:
        try:
            if self._guard is None:
                self._guard = GroupGuard()
            self._run = _Run(self._script, now + LIMIT_S, self._guard)
        except OSError as error:
            self._due = now + EVERY_S
            self._warn(LaunchError(f"it cannot be started: {error.strerror}"))

    def _finish(self, now: float) -> None:
        self._end_run()
        self._due = now + EVERY_S

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None

    def _warn(self, error: LaunchError) -> None:
        """Say why there is no answer, once until there is one again."""
        if not self._has_warned:
            self._has_warned = True
            self._say(
                f"bfrun: warning: {OPTION} '{self._script}': {error}; the job keeps "
                "the hosts that it named last"
            )


class _Run:
    """One run of a script. Its output goes to memory, so it waits for no reader.

    Raises:
        OSError: The script cannot be started.
    """

    def __init__(self, script: str, deadline: float, guard: GroupGuard) -> None:
        self._deadline = deadline
        self._guard = guard
        self._output = os.fdopen(os.memfd_create("hosts"), "rb")
        self._errors = os.fdopen(os.memfd_create("hosts-errors"), "rb")
        try:
            self._process = subprocess.Popen(
                [script],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError:
            self._close_files()
            raise
        guard.watch(self._process.pid)

    def answer(self, now: float) -> tuple[Host, ...] | None:
        """Return the hosts; None while the script runs.

        Raises:
            LaunchError: The script has failed, has printed something else, or has
                taken too long.
        """
        # Its process id must stay its own until its whole session has been ended.
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        end = os.waitid(os.P_PID, self._process.pid, look)
        if end is None:
            if now >= self._deadline:
                raise LaunchError(f"it has not ended within {LIMIT_S:g} s")
            return None
        if end.si_code != os.CLD_EXITED or end.si_status != 0:
            is_exit = end.si_code == os.CLD_EXITED
            what = f"{'exit code' if is_exit else 'signal'} {end.si_status}"
            said = _read(self._errors, _ERRORS_NBYTES).strip()
            raise LaunchError(f"it failed ({what}){f': {said}' if said else ''}")
        return parse_answer(_read(self._output, _OUTPUT_NBYTES))

    def close(self) -> None:
        """Kill the script, and the processes of its session, if they still run."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._guard.release()
        # If it has not ended by then, Popen waits for it when the next one starts.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_S)
        self._close_files()

    def _close_files(self) -> None:
        self._output.close()
        self._errors.close()


def _read(file: IO[bytes], nbytes: int) -> str:
    file.seek(0)
    return file.read(nbytes).decode("utf-8", "replace")


def await_hosts(
    script: str, slots: int, limit_s: float, say: Callable[[str], None]
) -> tuple[Host, ...]:
    """Run a script until it names enough hosts for the start of a job.

    Args:
        script: Path of the script.
        slots: Number of slots that the job needs.
        limit_s: Seconds to wait for them, but at least for the end of the first run.
        say: Shows a remark to the user.

    Raises:
        LaunchError: The first run has failed, or there have been too few slots for
            too long.
    """
    until = time.monotonic() + limit_s
    warnings: list[str] = []
    few = ""
    discovery = HostDiscovery(script, warnings.append)
    try:
        # Each run has a limit of its own, so the first one gives an answer or fails.
        while not few or time.monotonic() < until:
            answer = discovery.step()
            if warnings:
                if not few:
                    first = warnings[0].removeprefix("bfrun: warning: ")
                    raise LaunchError(first.partition("; the job keeps")[0])
                say(warnings.pop())
            if answer is None:
                time.sleep(_LOOK_S)
            elif number_of_slots(answer) >= slots:
                return answer
            elif not few:
                found = count(number_of_slots(answer), "slot")
                few = f"{OPTION} '{script}' names {found}, but the job needs {slots}"
                say(f"bfrun: {few}; waiting for more (--start-timeout: {limit_s:g} s)")
    finally:
        discovery.close()
    raise LaunchError(f"{few}, for {limit_s:g} s; lower -np, or raise --start-timeout")


def number_of_slots(hosts: Iterable[Host]) -> int:
    """Return the number of slots of some hosts."""
    return sum(host.slots or 0 for host in hosts)
