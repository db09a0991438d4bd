"""Gossip-PGA: neighbor averaging with an exact average every so often."""

from __future__ import annotations

from bluecomm.optim.algorithms.parameter_averaging import ParameterAveraging
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm


@register_algorithm("gossip_pga")
class GossipPGA(ParameterAveraging):
    """Gossip SGD with periodic global averaging.

    Every ``period``-th round uses ``W[i, j] = 1 / n``, all other rounds the topology's
    ``W``. This bounds the distance between the ranks' parameters, however sparse the
    graph and however many the ranks.

    Args:
        period: Rounds from one global average to the next.
        order: ``"atc"`` or ``"cta"``.
        topology: As for ``neighbor_allreduce``.
        uneven_inputs: Let ranks ``join`` when they run out of data.

    Raises:
        ValueError: ``period`` is less than 1.

    Source:
        Chen et al., "Accelerating Gossip SGD with Periodic Global Averaging",
        ICML 2021, arXiv:2105.09080.
    """

    works_on_devices = True
    communication_type = CommunicationType.neighbor_allreduce
    survives_losses = True
    admits_newcomers = True

    def __init__(
        self,
        *,
        period: int = 8,
        order: str = "atc",
        topology: object = None,
        uneven_inputs: bool = False,
    ) -> None:
        if period < 1:
            raise ValueError(f"period must be at least 1, got {period}")
        super().__init__(order=order, topology=topology, uneven_inputs=uneven_inputs)
        self._period = period

    def kind_of(self, round_number: int) -> CommunicationType:
        kind = super().kind_of(round_number)
        is_global = (round_number + 1) % self._period == 0
        if is_global and kind is self.communication_type:
            return CommunicationType.allreduce
        return kind
