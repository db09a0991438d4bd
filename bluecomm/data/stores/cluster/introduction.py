"""Makes the machine of a newcomer known to the cache servers of other ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

# Seconds after which a rank that has not answered is told again, and after which the
# attempts end.
_AGAIN_S = 5.0
_LIMIT_S = 60.0
# Seconds after which a rank looks again whether it takes part in the job by now.
_LOOK_S = 0.5


class Introduction:
    """Sends a message to other ranks, and repeats it to each until that has answered.

    Ranks that have no cache server never answer, so the attempts end after a minute.

    Args:
        others: The ranks.
        has_joined: Returns whether this rank takes part in the job by now.
        tell: Sends the message to a rank.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        others: Collection[int],
        has_joined: Callable[[], bool],
        tell: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unmet = set(others)
        self._has_joined = has_joined
        self._tell = tell
        self._clock = clock
        self._next_s = 0.0
        self._end_s = float("inf")

    def step(self) -> float:
        """Do what is due; return when to call this again at the latest."""
        now = self._clock()
        if not self._unmet:
            return float("inf")
        if not self._has_joined():
            return now + _LOOK_S
        if now >= self._end_s:
            self._unmet.clear()
        elif now >= self._next_s:
            self._end_s = min(self._end_s, now + _LIMIT_S)
            self._next_s = now + _AGAIN_S
            for rank in sorted(self._unmet):
                self._tell(rank)
        return self._next_s

    def forget(self, rank: int) -> None:
        """Note that a rank has answered, or has gone."""
        self._unmet.discard(rank)
