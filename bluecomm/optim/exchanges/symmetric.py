"""Averages with symmetric mixing matrices that stay the same, for exact methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bfrun.wording import count
from bluecomm.ops.neighbor_weights import Weights
from bluecomm.optim.exchanges.exchange import NeighborExchange
from bluecomm.optim.exchanges.regrouped import regroup
from bluecomm.optim.options import StepSettings
from bluecomm.runtime import Communicator
from bluecomm.topology import (
    StaticTopology,
    SymmetricExponentialGraph,
    TopologySchedule,
)
from bluecomm.topology.weights import NeighborWeights

if TYPE_CHECKING:
    from bluecomm.runtime.topology_in_force import Topology

_ROUNDING = 1e-6
_FIT = (
    "Use SymmetricExponentialGraph, HypercubeGraph, Torus2DGraph, RingGraph or "
    "FullyConnectedGraph, or with is_weighted=True MeshGrid2DGraph or StarGraph."
)


class SymmetricExchange(NeighborExchange):
    """``neighbor_allreduce`` with a symmetric ``W``, or with ``(I + W) / 2``.

    ``W`` is the matrix of ``topology=``, or of the topology in force, or of
    ``SymmetricExponentialGraph(n, base=2)`` until the user sets one.

    Args:
        comm: Ranks that take part.
        settings: Settings of the step; weights must not be set.
        topology: ``None``, a graph (whose weights are used) or a schedule of period 1.
        method: Name of the algorithm, for errors.
        is_lazy: Whether to use ``(I + W) / 2``.
        lowest: All eigenvalues of ``W`` must be above this value.

    Attributes:
        description: The graph of the last round, in words that are equal only for equal
            graphs and weights.

    Raises:
        TypeError: ``topology`` is something else.
        ValueError: ``topology`` changes from round to round, or has another number of
            ranks.
    """

    def __init__(
        self,
        comm: Communicator,
        settings: StepSettings,
        topology: object,
        *,
        method: str,
        is_lazy: bool,
        lowest: float = -2.0,
    ) -> None:
        super().__init__(comm, settings, None)
        self._method = method
        self._is_lazy = is_lazy
        self._lowest = lowest
        self._given = None if topology is None else self._check_static(topology)
        self._known: Topology | None = None
        self._weights: Weights | None = None
        self.description = ""

    def obstacle_to_growth(self, size: int) -> str:
        in_force = self._comm.topology
        if self._given is not None:
            if self._given.resized(size) is None:
                ranks = self._given.size
                return f"topology={self._given} exists for {ranks} ranks only"
        elif in_force is not None and in_force.factory is not None:
            graph = in_force.factory(size)
            schedule = StaticTopology(graph, is_weighted=in_force.is_weighted)
            if not self._suits(schedule):
                return (
                    f"{self._method} cannot use the topology in force with {size} ranks"
                )
        return super().obstacle_to_growth(size)

    def move(self, comm: Communicator) -> None:
        super().move(comm)
        self._weights = None
        if self._given is not None and self._given.size != comm.size:
            self._given = self._given.resized(comm.size)

    def weights(self, round_number: int) -> Weights:
        """Return the weights, the same in each round.

        Raises:
            ValueError: ``W`` does not suit the method, or weights are set as
                attributes.
        """
        if self._settings.has_weights():
            raise ValueError(
                f"{self._method} takes its weights from a static topology; set the "
                "attributes of the optimizer to None"
            )
        if self._regrouped is not None:
            return self._regrouped.at(round_number)
        in_force = self._comm.topology
        if self._weights is None or in_force is not self._known:
            self._known = in_force
            schedule = self._given or self._of(in_force)
            self._weights = self._resolve(schedule)
            self.description = repr(schedule)
        return self._weights

    def _schedule_for(self, left: Sequence[int]) -> TopologySchedule:
        in_force = self._comm.topology
        if self._given is None and (in_force is None or in_force.is_default):
            schedule: TopologySchedule = _symmetric_exponential(len(left))
        elif self._given is None and in_force is not None and in_force.factory:
            graph = in_force.factory(len(left))
            schedule = StaticTopology(graph, is_weighted=in_force.is_weighted)
        else:
            schedule = regroup(
                self._given or self._of(in_force),
                left,
                suits=self._suits,
                fallback=_symmetric_exponential,
            )
        is_lazy = self._is_lazy or not self._suits(schedule)
        return _Lazy(schedule) if is_lazy else schedule

    def _suits(self, schedule: TopologySchedule) -> bool:
        matrix = schedule.matrix(0)
        is_symmetric = np.abs(matrix - matrix.T).max() < _ROUNDING
        lowest = float(np.linalg.eigvalsh(matrix)[0])
        return bool(is_symmetric) and lowest > self._lowest

    def _of(self, in_force: Topology | None) -> TopologySchedule:
        if in_force is None or in_force.is_default:
            return _symmetric_exponential(self._comm.size)
        return StaticTopology(in_force.graph, is_weighted=in_force.is_weighted)

    def _resolve(self, schedule: TopologySchedule) -> Weights:
        matrix = schedule.matrix(0)
        is_symmetric = np.abs(matrix - matrix.T).max() < _ROUNDING
        if not (is_symmetric and schedule.is_doubly_stochastic):
            raise ValueError(
                f"{self._method} needs a mixing matrix that is symmetric and doubly "
                f"stochastic, but the topology's matrix is not. {_FIT}"
            )
        lowest = float(np.linalg.eigvalsh(matrix)[0])
        if lowest <= self._lowest:
            raise ValueError(
                f"{self._method} needs a mixing matrix with eigenvalues above "
                f"{self._lowest:.3g}, and the lowest of this topology is {lowest:.3g}; "
                "increase each rank's weight for itself, or use exact_diffusion"
            )
        own = schedule.weights(0, self._comm.rank)
        share = 0.5 if self._is_lazy else 1.0
        return Weights(
            1.0 - share * (1.0 - own.self_weight),
            {rank: share * weight for rank, weight in own.src_weights.items()},
            list(own.dst_ranks),
        )

    def _check_static(self, topology: Any) -> TopologySchedule:
        if not isinstance(topology, TopologySchedule):
            topology = StaticTopology(topology)
        if topology.period != 1 or topology.size != self._comm.size:
            raise ValueError(
                f"{self._method} needs the same topology in each round, of "
                f"{count(self._comm.size, 'rank')}, got {topology}"
            )
        checked: TopologySchedule = topology
        return checked


class _Lazy(TopologySchedule):
    """Half a schedule: ``(I + W) / 2``."""

    def __init__(self, schedule: TopologySchedule) -> None:
        super().__init__(schedule.size, schedule.period)
        self._schedule = schedule

    def weights(self, round_number: int, rank: int) -> NeighborWeights:
        """Return one rank's weights in a round."""
        whole = self._schedule.weights(round_number, rank)
        return NeighborWeights(
            0.5 + 0.5 * whole.self_weight,
            {source: 0.5 * weight for source, weight in whole.src_weights.items()},
            whole.dst_ranks,
        )


def _symmetric_exponential(size: int) -> StaticTopology:
    return StaticTopology(SymmetricExponentialGraph(size, base=2))
