"""Steps in which no rank's batch costs more than a budget."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bluecomm.data.balance import Costs, split_by_cost
from bluecomm.data.permutation import Indices
from bluecomm.data.remaining import Remaining
from bluecomm.data.steps import too_few


class BudgetSteps:
    """Steps of as many consecutive positions as fit into one batch on each rank.

    Each step has at least as many samples as ranks, so no batch is empty. If fewer are
    left at the end than ranks, the step before leaves as many as it must. Where that is
    not possible, the last step holds one sample more per rank at most, and exceeds the
    budget; with ``pad``, repeats fill up another step instead.

    Args:
        remaining: The positions.
        ranks: Number of ranks.
        max_cost: The budget of a batch, at least the largest cost.
        costs_at: Returns the costs at positions.
        drop_last: Whether to leave out fewer samples than ranks at the end.
        pad: Whether to fill up a last step with repeats.

    Raises:
        ValueError: There are fewer positions than ranks, at least one, and neither
            ``drop_last`` nor ``pad`` says what to do with them.
    """

    def __init__(
        self,
        remaining: Remaining,
        ranks: int,
        max_cost: float,
        costs_at: Callable[[Indices], Costs],
        *,
        drop_last: bool,
        pad: bool,
    ) -> None:
        self._remaining = remaining
        self._ranks = ranks
        self._max_cost = max_cost
        self._costs = costs_at(remaining.cut(0, len(remaining)))
        self._may_leave = drop_last or pad
        self._begins = [0]
        end = len(remaining)
        while end - self._begins[-1] >= ranks:
            self._begins.append(self._begins[-1] + self._next(self._begins[-1]))
        left = end - self._begins[-1]
        self._repeats = 0
        if left and pad:
            self._repeats = ranks - left
            self._begins.append(end)
        elif left and not drop_last:
            raise too_few(left, ranks)

    def __len__(self) -> int:
        return len(self._begins) - 1

    def positions(self, step: int) -> Indices:
        """Return the positions of one step."""
        found = self._remaining.cut(self._begins[step], self._begins[step + 1])
        if step < len(self) - 1 or not self._repeats:
            return found
        first = self._remaining.cut(0, self._repeats)
        wrapped = np.arange(self._repeats) % len(first)
        return np.concatenate([found, first[wrapped]])

    def after(self, steps: int) -> Remaining:
        """Return the positions that are left after some steps."""
        finished = steps >= len(self)
        count = len(self._remaining) if finished else self._begins[steps]
        return self._remaining.without(count)

    def _next(self, begin: int) -> int:
        """Return the number of samples of the step that begins at a position."""
        left = len(self._costs) - begin
        count = self._fitting(begin, left)
        if 0 < left - count < self._ranks and not self._may_leave:
            if left < 2 * self._ranks:
                return left
            return self._fitting(begin, left - self._ranks)
        return count

    def _fitting(self, begin: int, most: int) -> int:
        """Return how many samples fit, at least as many as ranks."""
        # The budgets of all ranks together bound the number from above.
        budget = self._max_cost * self._ranks
        count, step = self._ranks, self._ranks
        while count < most:
            step = min(2 * step, most - count)
            if self._costs[begin : begin + count + step].sum() > budget:
                break
            count += step
        total = np.cumsum(self._costs[begin : begin + min(count + step, most)])
        count = max(int(np.searchsorted(total, budget, side="right")), self._ranks)
        while count > self._ranks:
            costs = self._costs[begin : begin + count]
            groups = split_by_cost(costs, self._ranks, self._max_cost)
            if max(costs[group].sum() for group in groups) <= self._max_cost:
                return count
            count = max(min(count - 1, int(count * 0.98)), self._ranks)
        return count
