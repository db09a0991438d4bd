"""Exchanges: how parameters are averaged, one class for each operation.

``algorithms/parameter_averaging.py`` decides when they are averaged.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar

import torch

from bluecomm.ops.forms import NONBLOCKING, NONBLOCKING_IN_PLACE
from bluecomm.ops.neighbor_weights import STATIC, Weights
from bluecomm.ops.refusal import Operation
from bluecomm.ops.start import start
from bluecomm.ops.weighted_average import (
    MACHINES,
    RANKS,
    Level,
    refused_weighted_average,
    start_weighted_average,
)
from bluecomm.optim.exchanges.dynamic_topology import DynamicTopology
from bluecomm.optim.exchanges.regrouped import RegroupedWeights, regroup_static
from bluecomm.optim.options import CommunicationType, StepSettings
from bluecomm.runtime import Communicator, Handle, parameters
from bluecomm.topology import TopologySchedule


class Exchange(abc.ABC):
    """One way to average ``source`` over ranks into ``destination``.

    Args:
        comm: Ranks that take part.
        settings: Settings of the step, which may contain weights.
        topology: The value of ``topology=``, or ``None``.
    """

    def __init__(
        self, comm: Communicator, settings: StepSettings, topology: object
    ) -> None:
        self._comm = comm
        self._settings = settings
        self._dynamic = None
        if topology is not None:
            self._dynamic = self._make_dynamic(topology)

    @abc.abstractmethod
    def weights(self, round_number: int) -> Weights:
        """Return the weights of a round, the same for all its buckets.

        Raises:
            ValueError: The topology and the settings contradict each other.
        """

    @abc.abstractmethod
    def start(
        self,
        weights: Weights,
        source: torch.Tensor,
        destination: torch.Tensor,
        name: str,
    ) -> Handle[torch.Tensor]:
        """Start the operation; ``source`` must not change until it has finished."""

    @abc.abstractmethod
    def refused(self, weights: Weights, name: str) -> Operation:
        """Describe an operation that is not started; it must need no check of peers."""

    def obstacle_to_growth(self, size: int) -> str:
        """Return why it cannot go on with ``size`` ranks, as a clause, or ""."""
        return ""

    def move(self, comm: Communicator) -> None:
        """Go on in another world, which has the same ranks, and perhaps more."""
        self._comm = comm

    def regroup(self, left: Sequence[int]) -> None:
        """Go on with the members that are left, ascending.

        Raises:
            ValueError: The operation needs all members.
        """
        raise ValueError(
            f"{type(self).__name__} needs all ranks, and only {list(left)} are left"
        )

    @abc.abstractmethod
    def _make_dynamic(self, topology: object) -> DynamicTopology:
        """Return the weights of each round for the value of ``topology=``."""


class GraphExchange(Exchange):
    """A weighted average over a graph of ranks or of machines."""

    level: ClassVar[Level]
    # The weights since a loss, unless the user chooses those of each round.
    _regrouped: RegroupedWeights | None = None

    def obstacle_to_growth(self, size: int) -> str:
        if self._settings.has_weights():
            return "weights are set as attributes of the optimizer"
        return "" if self._dynamic is None else self._dynamic.obstacle_to_growth

    def move(self, comm: Communicator) -> None:
        super().move(comm)
        if self._dynamic is not None:
            node, _ = self.level.node(comm)
            self._dynamic = self._dynamic.moved(node, self.level.machine_of(comm))

    def weights(self, round_number: int) -> Weights:
        if self._regrouped is not None and not self._settings.has_weights():
            return self._regrouped.at(round_number)
        chosen = Weights(
            self._settings.self_weight,
            getattr(self._settings, self.level.words.src),
            getattr(self._settings, self.level.words.dst),
        )
        if self._dynamic is None:
            return chosen
        if self._settings.has_weights():
            raise ValueError(
                "the optimizer has topology= and also weights set as attributes; use "
                "only one of the two, or set the attributes to None"
            )
        return self._dynamic.at(round_number)

    def start(
        self,
        weights: Weights,
        source: torch.Tensor,
        destination: torch.Tensor,
        name: str,
    ) -> Handle[torch.Tensor]:
        return start_weighted_average(
            self.level,
            source,
            weights,
            enable_topo_check=self._settings.enable_topo_check,
            name=name,
            process_set=self._comm,
            timeout_s=None,
            output=destination,
        )

    def refused(self, weights: Weights, name: str) -> Operation:
        return refused_weighted_average(self.level, self._comm, weights, name)

    def _make_dynamic(self, topology: object) -> DynamicTopology:
        node, _ = self.level.node(self._comm)
        return DynamicTopology(
            topology,
            lambda: self.level.topology(self._comm),
            node,
            self.level.machine_of(self._comm),
        )


class NeighborExchange(GraphExchange):
    """``neighbor_allreduce``: average with the in-neighbors."""

    level = RANKS

    def move(self, comm: Communicator) -> None:
        super().move(comm)
        self._regrouped = None

    def regroup(self, left: Sequence[int]) -> None:
        schedule = self._schedule_for(left)
        self._regrouped = None
        if schedule is not None:
            self._regrouped = RegroupedWeights(schedule, left, self._comm.rank)

    def _schedule_for(self, left: Sequence[int]) -> TopologySchedule | None:
        """Return the schedule of those that are left; None to keep the user's."""
        if self._dynamic is not None:
            return self._dynamic.regrouped(left, self._suits)
        return regroup_static(self._comm.topology, left, suits=self._suits)

    def _suits(self, schedule: TopologySchedule) -> bool:
        """Return whether the algorithm can use a schedule."""
        return True


class HierarchicalExchange(GraphExchange):
    """``hierarchical_neighbor_allreduce``: average with neighboring machines."""

    level = MACHINES


class AllreduceExchange(Exchange):
    """``allreduce``: the exact mean over all ranks, without weights."""

    def weights(self, round_number: int) -> Weights:
        return STATIC

    def start(
        self,
        weights: Weights,
        source: torch.Tensor,
        destination: torch.Tensor,
        name: str,
    ) -> Handle[torch.Tensor]:
        return start_average(self._comm, source, destination, name)

    def refused(self, weights: Weights, name: str) -> Operation:
        return "allreduce", name, None

    def _make_dynamic(self, topology: object) -> DynamicTopology:
        raise ValueError(
            "the algorithm allreduce takes no topology; use neighbor_allreduce"
        )


def start_average(
    comm: Communicator, source: torch.Tensor, destination: torch.Tensor, name: str
) -> Handle[torch.Tensor]:
    """Start averaging ``source`` over all ranks into ``destination``."""
    return start(
        comm,
        "allreduce",
        source,
        NONBLOCKING_IN_PLACE if source is destination else NONBLOCKING,
        name=name,
        timeout_s=None,
        output=destination,
        parameters=parameters(op="average"),
    )


EXCHANGES: dict[CommunicationType, type[Exchange]] = {
    CommunicationType.neighbor_allreduce: NeighborExchange,
    CommunicationType.hierarchical_neighbor_allreduce: HierarchicalExchange,
    CommunicationType.allreduce: AllreduceExchange,
}
