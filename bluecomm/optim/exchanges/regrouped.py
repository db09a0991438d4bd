"""The weights of an exchange for the ranks that are left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from bluecomm.ops.neighbor_weights import Weights
from bluecomm.runtime.topology_in_force import Topology
from bluecomm.topology import ExponentialGraph, StaticTopology, TopologySchedule
from bluecomm.topology.reduced import ReducedSchedule, is_connected

_log = logging.getLogger("bluecomm")

Suits = Callable[[TopologySchedule], bool]


class RegroupedWeights:
    """The weights of one member by a schedule of those that are left.

    Args:
        schedule: Schedule of the members that are left, numbered in their order.
        left: The members that are left, ascending.
        member: The one of them whose weights these are.
    """

    def __init__(
        self, schedule: TopologySchedule, left: Sequence[int], member: int
    ) -> None:
        self._schedule = schedule
        self._left = left
        self._number = left.index(member)

    def at(self, round_number: int) -> Weights:
        """Return the weights of a round."""
        weights = self._schedule.weights(round_number, self._number)
        return Weights(
            weights.self_weight,
            {self._left[j]: weight for j, weight in weights.src_weights.items()},
            [self._left[j] for j in weights.dst_ranks],
        )


def regroup(
    schedule: TopologySchedule,
    left: Sequence[int],
    *,
    suits: Suits = lambda schedule: True,
    fallback: Callable[[int], TopologySchedule] | None = None,
) -> TopologySchedule:
    """Return a schedule for the members that are left, the same on all of them.

    The result is the same kind of schedule if that exists for their number, otherwise
    the given schedule without the other members. If that does not connect those that
    are left, or does not suit, another graph replaces it, and a warning is logged.

    Args:
        schedule: The schedule of all members.
        left: The members that are left, ascending.
        suits: Returns whether the algorithm can use a schedule.
        fallback: Makes the other graph from the number of members that are left.
            Default: the exponential-2 graph.
    """
    size = len(left)
    resized = schedule.resized(size)
    if resized is not None and suits(resized):
        return resized
    reduced = ReducedSchedule(schedule, left)
    if is_connected(reduced) and suits(reduced):
        return reduced
    other = exponential(size) if fallback is None else fallback(size)
    _log.warning(
        "the topology %s does not connect the %d ranks that are left as the algorithm "
        "needs it; they go on with %s",
        schedule,
        size,
        "ExponentialGraph" if fallback is None else other,
    )
    return other


def regroup_static(
    in_force: Topology | None,
    left: Sequence[int],
    *,
    suits: Suits = lambda schedule: True,
) -> TopologySchedule:
    """Return the schedule that replaces a topology, as ``regroup`` does.

    Args:
        in_force: The topology of all members.
        left: The members that are left, ascending.
        suits: Returns whether the algorithm can use a schedule.
    """
    if in_force is None or in_force.is_default:
        return exponential(len(left))
    if in_force.factory is not None:
        graph = in_force.factory(len(left))
        return StaticTopology(graph, is_weighted=in_force.is_weighted)
    given = StaticTopology(in_force.graph, is_weighted=in_force.is_weighted)
    return regroup(given, left, suits=suits)


def exponential(size: int) -> StaticTopology:
    """Return the exponential-2 graph as a schedule."""
    return StaticTopology(ExponentialGraph(size))
