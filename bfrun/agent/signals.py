"""The signals of the agent, which wake its loop.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from typing import Any

# Signals that are meant for the driver or the ranks, but that a terminal or Slurm may
# send to all processes.
IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1)


class SignalPipe:
    """Catches SIGCHLD and SIGTERM, and ignores signals that are meant for others.

    Args:
        selector: Selector of the loop, whose keys have a function as data.

    Attributes:
        terminated: Whether SIGTERM has arrived.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.terminated = False
        self._selector = selector
        self._read, self._write = os.pipe()

    def catch(self) -> None:
        """Handle signals from now on."""
        for fd in (self._read, self._write):
            os.set_blocking(fd, False)
        self._selector.register(self._read, selectors.EVENT_READ, self._drain)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for ignored in IGNORED:
            signal.signal(ignored, signal.SIG_IGN)

    def _on_sigterm(self, signum: int, frame: Any) -> None:
        self.terminated = True

    def _drain(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
