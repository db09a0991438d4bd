"""Matchings of nodes that stand for several ranks each, such as machines."""

from __future__ import annotations

from collections.abc import Sequence

from bfrun.wording import count
from bluecomm.topology.graph import check_integer
from bluecomm.topology.matchings import MatchingSchedule
from bluecomm.topology.schedule import TopologySchedule
from bluecomm.topology.weights import NeighborWeights


class WeightedMatchings(TopologySchedule):
    """Matchings in which each node counts by its number of ranks.

    Partners with ``a`` and ``b`` ranks take ``(a x_a + b x_b) / (a + b)``, the mean of
    all of their ranks. So the average over all ranks stays, where equal weights would
    move it towards the ranks of small machines. Use it with
    ``hierarchical_neighbor_allreduce``.

    Args:
        matchings: The matchings of the nodes.
        ranks: Number of ranks of each node.

    Raises:
        TypeError: A number is not an integer.
        ValueError: A number is less than 1, or there are not as many as nodes.
    """

    def __init__(self, matchings: MatchingSchedule, ranks: Sequence[int]) -> None:
        super().__init__(matchings.size, matchings.period)
        self._matchings = matchings
        self._ranks = [check_integer(each, "ranks", minimum=1) for each in ranks]
        if len(self._ranks) != self.size:
            raise ValueError(
                f"WeightedMatchings: ranks must have a number for each of the "
                f"{count(self.size, 'node')} of {matchings}, got {len(self._ranks)}"
            )

    def weights(self, round_number: int, rank: int) -> NeighborWeights:
        """Return one node's weights in a round."""
        partner = self._matchings.partner(round_number, rank)
        if partner is None:
            return NeighborWeights(1.0, {}, ())
        share = self._ranks[partner] / (self._ranks[rank] + self._ranks[partner])
        return NeighborWeights(1.0 - share, {partner: share}, (partner,))

    @property
    def is_doubly_stochastic(self) -> bool:
        """Whether every round also keeps the average over the nodes."""
        return len(set(self._ranks)) == 1

    def __repr__(self) -> str:
        return f"WeightedMatchings({self._matchings}, {self._ranks})"
