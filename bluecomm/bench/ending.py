"""Lets a program that SIGTERM ends remove its jobs and hosts first."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def exit_at_sigterm() -> None:
    """Raise ``SystemExit`` with the code 143 in this thread at SIGTERM.

    By default Python ends at once, without the ``finally`` blocks that kill jobs and
    remove simulated hosts. A second SIGTERM does nothing, so that it cannot interrupt
    these blocks.

    Raises:
        ValueError: This is not the main thread.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        # Not SIG_IGN, which the programs that the blocks start would inherit.
        signal.signal(number, lambda number, frame: None)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
