"""Estimates the offset between another machine's monotonic clock and ours.

As in NTP: if a question leaves at ``sent``, arrives there at ``received``, is answered
at ``replied`` and the answer arrives at ``arrived``, the offset of their clock is
``((received - sent) + (replied - arrived)) / 2``, with an error of at most half of the
time that the two messages took.

Source:
    Mills, "Internet Time Synchronization: the Network Time Protocol", RFC 1129 (1989).
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

# The best answer of each window is used. Between windows, clocks may drift.
WINDOW_NS = 10_000_000_000


class Sample(NamedTuple):
    """One answer: their time, their clock minus ours at that time, and the error."""

    theirs_ns: int
    offset_ns: int
    error_ns: int


class ClockEstimate:
    """The offset of one machine's clock, as a function of time.

    Without a sample it is exactly 0, because the clock is our own.
    """

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._window = -1

    def add(self, sent: int, received: int, replied: int, arrived: int) -> None:
        """Take an answer; all times in nanoseconds, in the order of ``sent``."""
        on_the_way = (arrived - sent) - (replied - received)
        if on_the_way < 0:
            return  # impossible with monotonic clocks
        sample = Sample(
            theirs_ns=(received + replied) // 2,
            offset_ns=((received - sent) + (replied - arrived)) // 2,
            error_ns=(on_the_way + 1) // 2,
        )
        window = arrived // WINDOW_NS
        if window != self._window:
            self._window = window
            self._samples.append(sample)
        elif sample.error_ns < self._samples[-1].error_ns:
            self._samples[-1] = sample

    @property
    def error_ns(self) -> int:
        """Largest possible error of the offset at any sample."""
        return max((sample.error_ns for sample in self._samples), default=0)

    @property
    def is_exact(self) -> bool:
        """Whether the offset is exact."""
        return not self._samples

    def offset_ns(self, theirs_ns: int) -> int:
        """Return their clock minus ours when theirs shows ``theirs_ns``."""
        if not self._samples:
            return 0
        times = [sample.theirs_ns for sample in self._samples]
        after = bisect.bisect(times, theirs_ns)
        if after == 0:
            return self._samples[0].offset_ns
        if after == len(times):
            return self._samples[-1].offset_ns
        low, high = self._samples[after - 1], self._samples[after]
        part = (theirs_ns - low.theirs_ns) / (high.theirs_ns - low.theirs_ns)
        return low.offset_ns + round(part * (high.offset_ns - low.offset_ns))

    def to_ours(self, theirs_ns: int) -> int:
        """Return what our clock shows when theirs shows ``theirs_ns``."""
        return theirs_ns - self.offset_ns(theirs_ns)
