"""Counts what a process holds of the system, to find what a world leaves behind."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.deadlines import wait_until

_NUMBERS = re.compile(r"\d+")


def held() -> Counter[str]:
    """Return how many of each kind of descriptor, thread and shared mapping exist."""
    gc.collect()
    counts: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        counts["descriptor " + _target(fd)] += 1
    for thread in os.listdir("/proc/self/task"):
        counts["thread " + _text(f"/proc/self/task/{thread}/comm")] += 1
    for line in _text("/proc/self/maps").splitlines():
        path = line.partition("/")[2]
        if path.startswith(("memfd", "dev/shm", "dev/zero")) or "bluecomm" in path:
            counts["mapping " + _NUMBERS.sub("#", path)] += 1
    return counts


def check_returned(
    before: Mapping[str, int], count: Callable[[], Mapping[str, int]]
) -> None:
    """Wait until this process has no more of anything than before.

    A thread that has been joined may be in /proc for a moment longer.

    Raises:
        AssertionError: It still has more at the deadline.
    """

    def grown() -> dict[str, tuple[int, int]]:
        return {
            kind: (before.get(kind, 0), now)
            for kind, now in count().items()
            if now > before.get(kind, 0)
        }

    wait_until(lambda: not grown(), lambda: f"grew from, to: {grown()}")


def _target(fd: str) -> str:
    try:
        return _NUMBERS.sub("#", os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:  # the descriptor of the listing itself
        return "closed"


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:  # the thread has ended
        return "ended"
