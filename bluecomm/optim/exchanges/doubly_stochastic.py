"""Averages with doubly stochastic mixing matrices, which tracking needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bluecomm.ops.neighbor_weights import Weights
from bluecomm.optim.exchanges.exchange import NeighborExchange
from bluecomm.optim.options import StepSettings
from bluecomm.runtime import Communicator
from bluecomm.topology import StaticTopology, TopologySchedule

if TYPE_CHECKING:
    from bluecomm.runtime.topology_in_force import Topology


class DoublyStochasticExchange(NeighborExchange):
    """``neighbor_allreduce`` that refuses topologies which shift the average.

    Weights from an iterator, from a function or from attributes are not checked.

    Args:
        comm: Ranks that take part.
        settings: Settings of the step, which may contain weights.
        topology: The value of ``topology=``, or ``None``.
        method: Name of the algorithm, for errors.

    Raises:
        TypeError: ``topology`` does not define weights.
        ValueError: ``topology`` is a schedule that is not doubly stochastic.
    """

    def __init__(
        self,
        comm: Communicator,
        settings: StepSettings,
        topology: object,
        *,
        method: str,
    ) -> None:
        super().__init__(comm, settings, topology)
        self._method = method
        self._checked: Topology | None = None
        if isinstance(topology, TopologySchedule):
            self._require(topology)

    def weights(self, round_number: int) -> Weights:
        """Return the weights of a round.

        Raises:
            ValueError: The topology in force is not doubly stochastic.
        """
        in_force = self._comm.topology
        is_static = self._dynamic is None and not self._settings.has_weights()
        if (
            self._regrouped is None
            and is_static
            and in_force is not None
            and in_force is not self._checked
        ):
            if not in_force.is_default:
                self._require(
                    StaticTopology(in_force.graph, is_weighted=in_force.is_weighted)
                )
            self._checked = in_force
        return super().weights(round_number)

    def _suits(self, schedule: TopologySchedule) -> bool:
        return schedule.is_doubly_stochastic

    def _require(self, topology: TopologySchedule) -> None:
        if not topology.is_doubly_stochastic:
            raise ValueError(
                f"{self._method} needs a doubly stochastic topology: the weights that "
                f"each rank gives, and those that it gets, must sum to 1, which does "
                f"not hold for {topology}. Use any graph of bluecomm with "
                "is_weighted=True, or any schedule except OnePeer of an irregular "
                "graph."
            )
