"""Connects to an agent of this machine that has lost its driver."""

from __future__ import annotations

import socket
import time

from bfrun.agent.procs import read_stat
from bfrun.launch.base import ProcessConnection

_LOOK_S = 0.02
_CONNECT_S = 5.0


class UnixConnection(ProcessConnection):
    """The socket of an agent that this process has not started.

    Args:
        path: Path of the socket. If nobody listens there, the connection has ended.
        guard_pid: Process id of the agent's guard, which ends last.
    """

    def __init__(self, path: str, guard_pid: int) -> None:
        self._guard_pid = guard_pid
        self._why = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        try:
            self._connect(path)
        except OSError as error:
            self._why = f"its socket cannot be reached: {error}"

    def _connect(self, path: str) -> None:
        """Connect, and wait if many other drivers are still to be accepted."""
        until = time.monotonic() + _CONNECT_S
        while True:
            try:
                self._socket.connect(path)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                time.sleep(_LOOK_S)
            else:
                return

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def receive(self, nbytes: int) -> bytes | None:
        """Return what the agent has sent; see :class:`ProcessConnection`."""
        try:
            return self._socket.recv(nbytes)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send(self, data: bytes | memoryview) -> int:
        """Send bytes to the agent; see :class:`ProcessConnection`."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionError(self._why or f"it has hung up: {error}") from error

    def diagnosis(self) -> str:
        """Return nothing, because the agent's standard error went to its starter."""
        return ""

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end of the guard.

        Returns:
            0 after its end, since only its parent learns the status, otherwise None.
        """
        until = time.monotonic() + timeout_s
        while is_running(self._guard_pid):
            if time.monotonic() >= until:
                return None
            time.sleep(_LOOK_S)
        return 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def answers(path: str) -> bool:
    """Return whether an agent listens at the socket ``path``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # others wait already
        except OSError:
            return False
        return True


def is_running(pid: int) -> bool:
    """Return whether the process exists and has not ended."""
    stat = read_stat(pid)
    return stat is not None and stat.state not in "ZX"
