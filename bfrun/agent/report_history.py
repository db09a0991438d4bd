"""The reports that a second driver needs to judge a job as the first one would have.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bfrun.frames.agent_to_driver import (
    FromRank,
    Past,
    RankExited,
    RankNotStarted,
    RankStarted,
    RankStopped,
    RankVanished,
)
from bfrun.frames.frame import Frame
from bfrun.frames.rank_to_agent import Hello
from bfrun.frames.rank_to_driver import (
    Failing,
    Goodbye,
    Publish,
    RankExcluded,
    StopRequest,
    ThreadFailed,
)

_OF_AGENTS = (Hello, RankStarted, RankNotStarted, RankExited, RankVanished, RankStopped)
# Publish, a record of a rendezvous, is the only kept frame that asks for an answer: for
# a stall report the ranks ask again, and the others belong to jobs that do not detach.
_OF_RANKS = frozenset(
    frame.kind
    for frame in (Failing, Goodbye, Publish, RankExcluded, StopRequest, ThreadFailed)
)


class ReportHistory:
    """Keeps the reports of an agent in their order.

    Args:
        clock: Seconds on a clock that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._reports: list[tuple[float, Frame]] = []

    @property
    def age_s(self) -> float:
        """Seconds since the history began."""
        return self._clock() - self._started

    def note(self, frame: Frame) -> None:
        """Keep a report if it says what has become of a rank."""
        if isinstance(frame, FromRank):
            if frame.frame["type"] not in _OF_RANKS:
                return
        elif not isinstance(frame, _OF_AGENTS):
            return
        if isinstance(frame, RankStopped) and frame.event == "thawed":
            # The stop is of no interest any more.
            self._drop(lambda kept: _has_stopped(kept, frame.rank))
            return
        self._reports.append((self.age_s, frame))

    def answered(self, number: int) -> None:
        """Drop the records of a round of the rendezvous, which the driver has ended."""
        self._drop(lambda kept: _is_record(kept, number))

    def _drop(self, is_over: Callable[[Frame], bool]) -> None:
        self._reports = [one for one in self._reports if not is_over(one[1])]

    def replay(self) -> list[Past]:
        """Return all reports in their order."""
        return [
            Past(at_s=at_s, frame=kept.to_message()) for at_s, kept in self._reports
        ]


def _has_stopped(frame: Frame, rank: int) -> bool:
    return (
        isinstance(frame, RankStopped)
        and frame.event == "frozen"
        and frame.rank == rank
    )


def _is_record(frame: Frame, number: int) -> bool:
    return (
        isinstance(frame, FromRank)
        and frame.frame["type"] == Publish.kind
        and frame.frame.get("round") == number
    )
