"""The ring of machines on which each rank counts the same."""

from __future__ import annotations

from collections.abc import Sequence

from bluecomm.ops.neighbor_weights import Weights
from bluecomm.optim.exchanges.exchange import HierarchicalExchange
from bluecomm.optim.options import StepSettings
from bluecomm.runtime import Communicator


def ring_shares(ranks: Sequence[int], node: int) -> tuple[float, float]:
    """Return the weights that a node of a ring gives to its left and right neighbor.

    Node ``k`` with ``n_k`` ranks gives a neighbor ``j`` the weight
    ``min(1, n_j / n_k) / 3``, so mixing does not change the mean over all ranks,
    ``sum_k n_k w_k / sum_k n_k``. With nodes of equal size all weights are 1/3.

    Args:
        ranks: Number of ranks of each node.
        node: The node.
    """
    left, right = (
        min(1.0, ranks[(node + hop) % len(ranks)] / ranks[node]) / 3 for hop in (-1, 1)
    )
    return left, right


class MachineRing(HierarchicalExchange):
    """A ring of machines with the weights of ``ring_shares``.

    With two machines the other one is the left and the right neighbor.

    Args:
        comm: Ranks that take part.
        settings: Settings of the step; weights must not be set.
        method: Name of the algorithm, for errors.

    Attributes:
        description: The machines, in words that are equal only for equal layouts.
        shares: The weights of the left and the right neighbor.
    """

    def __init__(self, comm: Communicator, settings: StepSettings, method: str) -> None:
        super().__init__(comm, settings, None)
        self._method = method
        layout, node = comm.layout, comm.machine_rank
        size = layout.machine_size
        ranks = [layout.machine_of.count(machine) for machine in range(size)]
        self.description = f"MachineRing({list(layout.machine_of)})"
        self.shares = ring_shares(ranks, node)
        sources: dict[int, float] = {}
        for hop, share in zip((-1, 1), self.shares, strict=True):
            other = (node + hop) % size
            if other != node:
                sources[other] = sources.get(other, 0.0) + share
        own = 1.0 - sum(sources.values())
        self._weights = Weights(own, sources, list(sources))

    def weights(self, round_number: int) -> Weights:
        """Return the weights, the same in each round.

        Raises:
            ValueError: Weights are set as attributes.
        """
        if self._settings.has_weights():
            raise ValueError(
                f"{self._method} averages on a ring of machines; set the weights that "
                "are attributes of the optimizer to None"
            )
        return self._weights
