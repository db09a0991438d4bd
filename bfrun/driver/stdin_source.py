"""Reads the driver's standard input for rank 0."""

from __future__ import annotations

import os

from bfrun.channel import bytes_to_text
from bfrun.frames.driver_to_agent import StdinData

_WINDOW_NBYTES = 64 << 10


class StdinSource:
    """Reads standard input as fast as rank 0 takes it.

    Args:
        fd: Descriptor to read. The caller owns it.
    """

    def __init__(self, fd: int = 0) -> None:
        self.fd = fd
        self.ended = False
        self._untaken = 0

    @property
    def wants_more(self) -> bool:
        """Whether to poll the descriptor."""
        return not self.ended and self._untaken < _WINDOW_NBYTES

    def read(self) -> StdinData:
        """Return a frame with the input that is available now, or its end."""
        try:
            data = os.read(self.fd, _WINDOW_NBYTES - self._untaken)
        except OSError:
            data = b""
        self.ended = not data
        self._untaken += len(data)
        return StdinData(data=bytes_to_text(data), end=self.ended)

    def taken(self, nbytes: int) -> None:
        """Note that the rank has taken ``nbytes``."""
        self._untaken -= nbytes
