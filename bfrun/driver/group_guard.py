"""Ends a process group if this process is killed before it has done so itself."""

from __future__ import annotations

import contextlib
import os
import subprocess

# Each line has the group to kill at the end of the input; an empty one spares it.
_PROGRAM = """\
while read -r line; do group=$line; done
[ -z "$group" ] || kill -s KILL -- "-$group"
"""
# Seconds in which a guard without a group ends.
_END_S = 1.0


class GroupGuard:
    """A shell that reads from a pipe, which ends with this process.

    It stays out of the group and the session of this process, so Ctrl-C in a terminal
    does not reach it.
    """

    def __init__(self) -> None:
        """Start the shell.

        Raises:
            OSError: The system starts no process, or has no more descriptors.
        """
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _PROGRAM],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._input = self._process.stdin

    def watch(self, group: int) -> None:
        """Kill a group, instead of any earlier one, when this process ends."""
        self._tell(f"{group}\n")

    def release(self) -> None:
        """Kill no group. Call this before the leader's number may be used again."""
        self._tell("\n")

    def close(self) -> None:
        """End the shell, which also kills the group that has not been released."""
        self._input.close()
        # If it has not ended by then, Popen waits for it when another process starts.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody has killed the shell
            os.write(self._input.fileno(), line.encode())
