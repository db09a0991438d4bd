"""Turns signals to the driver into events of its loop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalWatch:
    """Collects signals while it is entered, and restores the handlers afterwards.

    Python sets handlers only in the main thread. A watch in another thread catches no
    signals, and only ``wake`` works.

    Attributes:
        fd: Descriptor that polls readable after a signal or a call of ``wake``.
    """

    SUSPEND = signal.SIGTSTP
    # The job will be ended soon, as batch systems tell it.
    NOTICE = signal.SIGUSR1

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        for fd in (self.fd, self._write_fd):
            os.set_blocking(fd, False)
        self._seen: list[int] = []
        self._old: dict[int, Any] = {}
        self._old_wakeup = -1

    def __enter__(self) -> SignalWatch:
        if threading.current_thread() is threading.main_thread():
            self._old_wakeup = signal.set_wakeup_fd(
                self._write_fd, warn_on_full_buffer=False
            )
            for number in (*_ENDING, self.SUSPEND, self.NOTICE):
                # nohup and `&` in scripts ignore signals on purpose.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._old_wakeup)
        os.close(self.fd)
        os.close(self._write_fd)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._seen.append(number)

    def wake(self) -> None:
        """Make ``fd`` readable. Safe to call from any thread."""
        # A full pipe is readable already.
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_fd, b"\0")

    def take(self) -> list[int]:
        """Return the signals since the last call, in order."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 4096):
                pass
        seen, self._seen = self._seen, []
        return seen


def stop_myself() -> None:
    """Stop this process as Ctrl-Z does. Returns after it is resumed."""
    os.kill(os.getpid(), signal.SIGSTOP)
