"""The positions of an epoch that no step has used yet."""

from __future__ import annotations

import numpy as np

from bluecomm.data.permutation import Indices


class Remaining:
    """Positions in an epoch's order: a few single ones, then all from one to the end.

    Args:
        head: The single ones.
        start: The first of the others.
        length: Number of positions in the whole epoch.
    """

    def __init__(self, head: Indices, start: int, length: int) -> None:
        self.head = head
        self.start = start
        self.length = length

    @classmethod
    def whole(cls, length: int) -> Remaining:
        """Return all positions of an epoch."""
        return cls(np.empty(0, dtype=np.int64), 0, length)

    def __len__(self) -> int:
        return len(self.head) + self.length - self.start

    def cut(self, begin: int, end: int) -> Indices:
        """Return the positions from number ``begin`` to before number ``end``."""
        single = len(self.head)
        end = min(end, len(self))
        first = self.start + max(begin - single, 0)
        last = self.start + max(end - single, 0)
        rest = np.arange(first, last, dtype=np.int64)
        return np.concatenate([self.head[begin : min(end, single)], rest])

    def without(self, count: int) -> Remaining:
        """Return what is left after the first ``count`` positions."""
        skipped = max(count - len(self.head), 0)
        return Remaining(self.head[count:], self.start + skipped, self.length)
