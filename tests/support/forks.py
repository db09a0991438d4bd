"""Forks that run a part of a test."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

from tests.support.deadlines import DEADLINE_S


def fork(function: Callable[..., Any], *arguments: Any) -> int:
    """Run a function in a fork; return the process's id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        # An alarm ends a fork that hangs.
        signal.alarm(int(DEADLINE_S))
        function(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def outcome(pid: int) -> int:
    """Wait for a fork; return its exit code, or the negative signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_fork(function: Callable[..., Any], *arguments: Any) -> None:
    """Run a function in a fork, which must not raise."""
    assert outcome(fork(function, *arguments)) == 0


def kill(pid: int) -> None:
    """Kill a fork."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    assert outcome(pid) == -signal.SIGKILL


def fork_until_ready(function: Callable[[Callable[[], None]], Any]) -> int:
    """Run a function in a fork; return the process's id when it calls its argument.

    The fork waits there for a signal.
    """
    ready, told = os.pipe()

    def child() -> None:
        def pause() -> None:
            os.write(told, b"x")
            signal.pause()

        function(pause)

    pid = fork(child)
    os.close(told)
    try:
        # Empty if the fork ends before.
        assert os.read(ready, 1), outcome(pid)
    finally:
        os.close(ready)
    return pid
