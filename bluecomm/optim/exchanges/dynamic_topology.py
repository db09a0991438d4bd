"""Weights that change from round to round, as ``topology=`` specifies them."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bfrun.wording import count
from bluecomm.ops.neighbor_weights import Weights
from bluecomm.optim.exchanges.regrouped import Suits, exponential, regroup
from bluecomm.topology import (
    OnePeer,
    StaticTopology,
    TopologySchedule,
    default_schedule,
)
from bluecomm.topology.rank_lists import list_ranks

if TYPE_CHECKING:
    from bluecomm.runtime.topology_in_force import Topology


# A value of the user's iterator or function: the ranks to send to and to receive from,
# or the three weights.
Entry = Sequence[Any]
Source = Callable[[int], Entry] | Iterable[Entry] | str


class DynamicTopology:
    """The weights of each round.

    Args:
        source: ``"one_peer"``, a schedule, an iterator or iterable over the rounds, or
            a function from the number of the round (from 0).
        topology: Returns the topology in force, for ``"one_peer"``.
        rank: This rank (or machine) in that topology.
        machine_of: Machine of each rank; for machines, each is its own.

    Raises:
        TypeError: ``source`` is something else.
        ValueError: ``source`` is a string other than ``"one_peer"``, or a schedule for
            another number of ranks.
    """

    def __init__(
        self,
        source: object,
        topology: Callable[[], Topology | None],
        rank: int,
        machine_of: Sequence[int],
    ) -> None:
        self._source = source
        self._topology = topology
        self._machine_of = machine_of
        self._at: Callable[[int], Entry]
        if isinstance(source, TopologySchedule):
            if source.size != len(machine_of):
                raise ValueError(
                    f"topology: {source} is for {count(source.size, 'rank')} (or "
                    f"machines), but there are {len(machine_of)}"
                )
            self._at = _Schedule(source, rank)
        elif isinstance(source, str):
            if source != "one_peer":
                raise ValueError(
                    "topology must be 'one_peer', a schedule, an iterator or a "
                    f"function, got {source!r}"
                )
            self._at = _OnePeer(topology, rank, machine_of)
        elif callable(source):
            self._at = source
        elif isinstance(source, Iterable):
            self._at = _Rounds(iter(source))
        else:
            raise TypeError(
                "topology must be 'one_peer', a schedule of bluecomm.topology, an "
                "iterator of ([send ranks], [receive ranks]) or a function of the "
                f"round, got {type(source).__name__}; a static graph is for "
                "bluecomm.set_topology"
            )

    @property
    def obstacle_to_growth(self) -> str:
        """Why it cannot be made for more ranks, as a clause; empty if it can."""
        if self._source == "one_peer":
            topology = self._topology()
            is_fixed = topology is not None and not (
                topology.is_default or topology.factory
            )
            return "topology='one_peer' follows a given graph" if is_fixed else ""
        if not isinstance(self._source, TopologySchedule):
            return "topology= is an iterator or a function of the round"
        if self._source.resized(self._source.size) is None:
            return f"topology={self._source} exists for {self._source.size} ranks only"
        return ""

    def moved(self, rank: int, machine_of: Sequence[int]) -> DynamicTopology:
        """Return the same for another world, which may have more ranks.

        Args:
            rank: This rank (or machine) there.
            machine_of: Machine of each rank there.
        """
        source, size = self._source, len(machine_of)
        if isinstance(source, TopologySchedule):
            if source.size != size:
                source = source.resized(size) or exponential(size)
        elif source != "one_peer":
            return self  # its rounds go on
        return DynamicTopology(source, self._topology, rank, machine_of)

    def regrouped(self, left: Sequence[int], suits: Suits) -> TopologySchedule | None:
        """Return the schedule of the ranks that are left, ascending.

        Returns:
            ``None`` for an iterator or a function, which alone know the weights.
        """
        if isinstance(self._source, TopologySchedule):
            return regroup(self._source, left, suits=suits)
        if self._source != "one_peer":
            return None
        topology = self._topology()
        if topology is None or topology.is_default:
            return default_schedule([self._machine_of[rank] for rank in left])
        graph = StaticTopology(topology.graph, is_weighted=False)
        return OnePeer(regroup(graph, left).graph(0))

    def at(self, round_number: int) -> Weights:
        """Return the weights of a round; rounds are asked for in ascending order.

        Raises:
            ValueError: The user's iterator is exhausted, or its entry is invalid.
        """
        return as_weights(self._at(round_number))


def as_weights(entry: Entry) -> Weights:
    """Return the weights that an entry specifies; ranks may come as any iterable.

    ``([send ranks], [receive ranks])`` means uniform weights
    ``1 / (receive ranks + 1)``.

    Raises:
        ValueError: The entry is neither such a pair nor
            ``(self_weight, src_weights, dst_weights)``.
    """
    if hasattr(entry, "tolist"):  # an array of both lists
        entry = entry.tolist()
    if isinstance(entry, Sequence) and len(entry) == 2:
        with contextlib.suppress(TypeError):  # not lists of ranks
            send, receive = (list_ranks(ranks, "topology") for ranks in entry)
            uniform = 1.0 / (len(receive) + 1)
            return Weights(uniform, dict.fromkeys(receive, uniform), send)
    if isinstance(entry, Sequence) and len(entry) == 3:
        own, sources, destinations = entry
        if isinstance(own, numbers.Real) and isinstance(sources, Mapping):
            return Weights(float(own), sources, destinations)
    raise ValueError(
        "topology: a round must be ([send ranks], [receive ranks]) or (self_weight, "
        f"src_weights, dst_weights), got {entry!r}"
    )


class _Rounds:
    """Returns the entries of an iterator by number, in ascending order."""

    def __init__(self, iterator: Iterator[Entry]) -> None:
        self._iterator = iterator
        self._taken = 0
        self._entry: Entry = ()

    def __call__(self, round_number: int) -> Entry:
        if round_number < self._taken - 1:
            raise ValueError(
                f"topology: the iterator is at round {self._taken} and cannot go back "
                f"to round {round_number}; pass a new iterator, or a function of the "
                "round"
            )
        while self._taken <= round_number:
            try:
                self._entry = next(self._iterator)
            except StopIteration:
                raise ValueError(
                    "topology: the iterator ended after "
                    f"{count(self._taken, 'round')}; it must be infinite, such as "
                    "itertools.cycle(...)"
                ) from None
            self._taken += 1
        return self._entry


class _Schedule:
    """Returns one rank's weights by a schedule."""

    def __init__(self, schedule: TopologySchedule, rank: int) -> None:
        self._schedule = schedule
        self._rank = rank

    def __call__(self, round_number: int) -> Entry:
        weights = self._schedule.weights(round_number, self._rank)
        return weights.self_weight, weights.src_weights, weights.dst_ranks


class _OnePeer:
    """Averages with one neighbor of the topology in force at a time.

    Follows ``set_topology``. Until the user calls it, uses the schedule that suits the
    machines.
    """

    def __init__(
        self,
        topology: Callable[[], Topology | None],
        rank: int,
        machine_of: Sequence[int],
    ) -> None:
        self._topology = topology
        self._rank = rank
        self._machine_of = machine_of
        self._known: Topology | None = None
        self._schedule: _Schedule | None = None

    def __call__(self, round_number: int) -> Entry:
        topology = self._topology()
        if topology is None:
            raise ValueError("topology='one_peer': no topology is set")
        if topology is not self._known or self._schedule is None:
            self._known = topology
            schedule = (
                default_schedule(self._machine_of)
                if topology.is_default
                else OnePeer(topology.graph)
            )
            self._schedule = _Schedule(schedule, self._rank)
        return self._schedule(round_number)
