"""Forks that run a part of a test."""

import contextlib
import os
import signal
import traceback

from tests.support.deadlines import DEADLINE_S


def fork(function, *arguments):
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


def outcome(pid):
    """Wait for a fork; return its exit code, or the negative signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_fork(function, *arguments):
    """Run a function in a fork, which must not raise."""
    assert outcome(fork(function, *arguments)) == 0


def kill(pid):
    """Kill a fork."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    assert outcome(pid) == -signal.SIGKILL


def fork_until_ready(function):
    """Run a function in a fork; return the process's id when it calls its argument.

    The fork waits there for a signal.
    """
    ready, told = os.pipe()

    def child():
        def pause():
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
