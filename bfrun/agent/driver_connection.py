"""The agent's end of the connection to the driver, and of the pipe to its guard.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable

from bfrun.agent.report_history import ReportHistory
from bfrun.channel import MessageParser, SendQueue
from bfrun.errors import ProtocolError
from bfrun.frames.driver_to_agent import DRIVER_TO_AGENT, Beat, Resume, Suspend
from bfrun.frames.frame import Frame, decode
from bfrun.silence import MARGIN_S, SilenceTimer

# Limit until the first ``start`` frame arrives with the limit of the job.
_START_LIMIT_S = 30.0
BEAT_EVERY_S = 1.0
LIVE_BEAT = b"."
PAUSED_BEAT = b"P"
_READ_NBYTES = 256 << 10


def drop_errors() -> None:
    """Send standard error to /dev/null, because SSH does not read it any more."""
    null = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(null, fd)
    os.close(null)


class DriverConnection:
    """Frames to and from the driver, at first over standard input and output.

    Takes over both descriptors and replaces them by /dev/null and by standard error,
    so that nothing else can write between frames.

    Args:
        marker: Written before the first frame.
        beat_fd: Pipe that tells the guard that the agent lives.
        selector: The agent's selector.
        on_frame: Called with each frame of the driver except heartbeats.

    Attributes:
        ended: Whether the driver has hung up.
        is_attached: Whether there is a driver, which may have hung up.
        history: Gets all control frames, if the agent may outlive its driver.
    """

    def __init__(
        self,
        marker: bytes,
        beat_fd: int,
        selector: selectors.BaseSelector,
        on_frame: Callable[[Frame], None],
    ) -> None:
        self._in_fd, self._out_fd = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)
        for fd in (self._in_fd, self._out_fd, beat_fd):
            os.set_blocking(fd, False)
        self._beat_fd = beat_fd
        self._selector = selector
        self._on_frame = on_frame
        self._parser = MessageParser()
        self._queue = SendQueue()
        self._marker: memoryview | None = memoryview(marker)
        self._silence = SilenceTimer(_START_LIMIT_S + MARGIN_S)
        self._beat_due = 0.0
        self._guard_due = 0.0
        self._waits_to_write = False
        self.ended = False
        self.is_attached = True
        self.history: ReportHistory | None = None
        self._watch_input()

    @property
    def paused(self) -> bool:
        """Whether the driver has announced that it is suspended."""
        return self._silence.paused

    @property
    def idle(self) -> bool:
        """Whether every frame has been written."""
        return not self._queue and not self._marker

    def set_link_timeout(self, seconds: float) -> None:
        """Set how long the network may carry nothing before the driver is lost."""
        self._silence.limit_s = seconds + MARGIN_S

    def lost(self) -> bool:
        """Whether the driver has ended, or has been silent for too long."""
        return self.is_attached and (self.ended or self._silence.expired())

    def detach(self) -> None:
        """Close the connection, and drop what has not been sent."""
        self._unwatch_input()
        self._want_write(False)
        for fd in (self._in_fd, self._out_fd):
            os.close(fd)
        self._queue = SendQueue()
        self._marker = None
        self._silence.pause(False)
        self.is_attached = False

    def attach(self, driver: socket.socket) -> None:
        """Serve another driver after ``detach``. Takes over its connection."""
        self._in_fd, self._out_fd = os.dup(driver.fileno()), os.dup(driver.fileno())
        driver.close()
        self._parser = MessageParser()
        self._silence.heard()
        self.ended = False
        self.is_attached = True
        self._watch_input()

    def read_rest(self) -> None:
        """Handle the frames that the driver had sent before it hung up."""
        while self._receive():
            pass

    def _watch_input(self) -> None:
        self._reads = True
        self._selector.register(
            self._in_fd, selectors.EVENT_READ, lambda mask: self._receive()
        )

    def _unwatch_input(self) -> None:
        if self._reads:
            self._reads = False
            self._selector.unregister(self._in_fd)

    def send(self, frame: Frame) -> None:
        """Queue a control frame.

        Raises:
            ProtocolError: The frame is too large.
        """
        if self.is_attached:
            self._queue.put(frame.to_message())
        if self.history is not None:
            self.history.note(frame)

    def send_bulk(self, frame: Frame) -> None:
        """Queue a frame that control frames may overtake."""
        if self.is_attached:
            self._queue.put_bulk(frame.to_message())

    def flush(self) -> None:
        """Write what the driver takes now; the selector reports when to go on."""
        self._tell_guard()
        if not self.is_attached:
            return
        now = time.monotonic()
        if now >= self._beat_due and not self._queue:
            self._beat_due = now + BEAT_EVERY_S
            self._queue.put(Beat().to_message())
        try:
            if self._marker:
                self._marker = self._marker[os.write(self._out_fd, self._marker) :]
            while self._queue and not self._marker:
                self._queue.advance(os.write(self._out_fd, self._queue.peek()))
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True
        self._want_write(bool(self._queue or self._marker) and not self.ended)

    def _want_write(self, wanted: bool) -> None:
        if wanted == self._waits_to_write:
            return
        self._waits_to_write = wanted
        if wanted:
            # This only wakes the agent's loop, which flushes after every event.
            self._selector.register(
                self._out_fd, selectors.EVENT_WRITE, lambda mask: None
            )
        else:
            self._selector.unregister(self._out_fd)

    def _receive(self) -> bool:
        """Read once, and return whether there may be more."""
        if not self._reads:
            return False
        try:
            data = os.read(self._in_fd, _READ_NBYTES)
            frames = [
                decode(message, "the driver", DRIVER_TO_AGENT)
                for message in self._parser.feed(data)
            ]
        except BlockingIOError:
            return False
        except OSError:
            data, frames = b"", []
        except ProtocolError as error:
            # The driver shows it as the reason why it lost its agent.
            print(f"bfrun's agent: {error}", file=sys.stderr, flush=True)
            data, frames = b"", []
        if not data:
            self.ended = True
            self._unwatch_input()
            return False
        self._silence.heard()
        for frame in frames:
            if isinstance(frame, (Suspend, Resume)):
                self._pause(isinstance(frame, Suspend))
            elif not isinstance(frame, Beat):
                self._on_frame(frame)
        return True

    def _pause(self, paused: bool) -> None:
        self._silence.pause(paused)
        self._guard_due = 0.0
        self._tell_guard()

    def _tell_guard(self) -> None:
        now = time.monotonic()
        if now < self._guard_due:
            return
        self._guard_due = now + BEAT_EVERY_S / 2
        # A full pipe holds enough beats, and the kernel signals the guard's death.
        with contextlib.suppress(OSError):
            os.write(self._beat_fd, PAUSED_BEAT if self.paused else LIVE_BEAT)
