"""Steps of samples of similar cost, with bounded disorder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bluecomm.data.balance import Costs
from bluecomm.data.permutation import Indices, Permutation
from bluecomm.data.remaining import Remaining
from bluecomm.data.steps import EqualSteps


class SortedSteps:
    """Sorts the samples of each *window* of steps by cost, and shuffles its steps.

    A sample is used at most ``window - 1`` steps earlier or later than in the random
    order. The last step is not sorted if it is not a full one.

    Args:
        equal: The steps in the random order.
        window: Steps of a window.
        costs_at: Returns the costs at positions.
        key: Seed and numbers of the order of the steps in their windows.
    """

    def __init__(
        self,
        equal: EqualSteps,
        window: int,
        costs_at: Callable[[Indices], Costs],
        key: tuple[int, ...],
    ) -> None:
        self._equal = equal
        self._window = window
        self._costs_at = costs_at
        self._key = key
        self._latest: tuple[int, Indices] | None = None

    def __len__(self) -> int:
        return len(self._equal)

    def positions(self, step: int) -> Indices:
        """Return the positions of one step."""
        if step >= self._equal.full:
            return self._equal.positions(step)
        begin = step - step % self._window
        found: Indices = self._sorted(begin)[step - begin]
        return found

    def after(self, steps: int) -> Remaining:
        """Return the positions that are left after some steps."""
        begin = steps - steps % self._window
        if steps >= self._equal.full or steps == begin:
            return self._equal.after(steps)
        window = self._sorted(begin)
        rest = self._equal.remaining.without(begin * self._equal.each + window.size)
        left = window[steps - begin :].ravel()
        return Remaining(np.concatenate([left, rest.head]), rest.start, rest.length)

    def _sorted(self, begin: int) -> Indices:
        """Return the positions of a window, a row per step."""
        if self._latest is None or self._latest[0] != begin:
            count = min(self._window, self._equal.full - begin)
            each = self._equal.each
            positions = self._equal.remaining.cut(begin * each, (begin + count) * each)
            order = np.argsort(self._costs_at(positions), kind="stable")
            rows = positions[order].reshape(count, each)
            shuffled = Permutation(count, *self._key, begin).at(np.arange(count))
            self._latest = begin, rows[shuffled]
        return self._latest[1]
