"""Schedules without some of their ranks, for jobs that go on after a loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bluecomm.topology.schedule import TopologySchedule, is_doubly_stochastic_for
from bluecomm.topology.weights import NeighborWeights

# Number of rounds by which a schedule that never repeats is judged.
_ROUNDS = 64


class ReducedSchedule(TopologySchedule):
    """A schedule without some of its ranks.

    A rank keeps for itself the weights that it gave to lost ranks, so the weights that
    it gives still sum to 1. If the matrix of a round is symmetric, so is the reduced
    one.

    Args:
        schedule: The schedule of all ranks.
        left: The ranks that are left, in ascending order. They are renumbered
            ``0 .. n-1`` in this order.

    Raises:
        ValueError: ``left`` is empty, not ascending, or has an unknown rank.
    """

    def __init__(self, schedule: TopologySchedule, left: Sequence[int]) -> None:
        known = range(schedule.size)
        if not left or list(left) != sorted(set(left) & set(known)):
            raise ValueError(
                f"left must be ascending ranks of 0 .. {schedule.size - 1}, at least "
                f"one, got {list(left)}"
            )
        super().__init__(len(left), schedule.period)
        self._schedule = schedule
        self._left = tuple(left)
        self._number = {rank: number for number, rank in enumerate(left)}

    def weights(self, round_number: int, rank: int) -> NeighborWeights:
        """Return one rank's weights in a round."""
        whole = self._schedule.weights(round_number, self._left[rank])
        number = self._number
        kept = {number[j]: w for j, w in whole.src_weights.items() if j in number}
        lost = [w for j, w in whole.src_weights.items() if j not in number]
        targets = tuple(number[j] for j in whole.dst_ranks if j in number)
        return NeighborWeights(whole.self_weight + sum(lost), kept, targets)

    @property
    def is_doubly_stochastic(self) -> bool:
        """Whether every round keeps the average over the ranks."""
        return is_doubly_stochastic_for(self, min(self.period or _ROUNDS, _ROUNDS))

    def __repr__(self) -> str:
        return f"ReducedSchedule({self._schedule!r}, {list(self._left)})"


def is_connected(schedule: TopologySchedule) -> bool:
    """Return whether the values of each rank reach all others, in enough periods."""
    reach = np.eye(schedule.size, dtype=bool)
    for number in range(min(schedule.period or _ROUNDS, _ROUNDS)):
        reach |= schedule.matrix(number) > 0
    for _ in range(schedule.size.bit_length()):
        reach = reach @ reach
    return bool(reach.all())
