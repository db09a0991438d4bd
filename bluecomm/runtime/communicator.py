"""Communicators: a set of ranks that operate together, and their topologies."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import numbers
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bluecomm.runtime.call import Call, Result
from bluecomm.runtime.handle import Handle
from bluecomm.runtime.layout import MachineLayout
from bluecomm.runtime.parameters import parameters as make_parameters
from bluecomm.topology.default import default_weights
from bluecomm.topology.exponential import ExponentialGraph
from bluecomm.topology.weights import NeighborWeights, resolve_weights

if TYPE_CHECKING:
    import networkx as nx

    from bluecomm._native import Parameters
    from bluecomm.runtime.world import World

# Operations without a name are numbered by call order per kind, modulo this, so that
# the tables of names stay small.
_UNNAMED = 4096


@dataclasses.dataclass(frozen=True)
class Topology:
    """A graph in force, and what one member does by it, resolved once."""

    make_graph: Callable[[], nx.DiGraph[int]]
    is_weighted: bool
    weights: NeighborWeights
    # Whether it is there because nobody has set another one.
    is_default: bool = False

    @functools.cached_property
    def graph(self) -> nx.DiGraph[int]:
        """The graph, which is made when it is asked for first."""
        return self.make_graph()

    @functools.cached_property
    def parameters(self) -> Parameters:
        """What the engine has to know of an average by these weights."""
        return make_parameters(
            self_weight=self.weights.self_weight,
            sources=tuple(self.weights.src_weights.items()),
            destinations=tuple((rank, 1.0) for rank in self.weights.dst_ranks),
        )


class Communicator:
    """A set of ranks of the world; members are numbered 0 .. size - 1.

    All operations take one as ``process_set`` and then act among its members. Every
    rank of the world makes the same communicators in the same order; making one needs
    no communication.

    Args:
        world: The world.
        ranks: The members' ranks in the world.
        creation: How many communicators of the same ranks were made before.
    """

    def __init__(self, world: World, ranks: Sequence[int], creation: int = 0) -> None:
        self.world = world
        self.ranks = tuple(ranks)
        self._unnamed: dict[str, int] = {}
        self._topology: Topology | None = None
        self._machine_topology: Topology | None = None
        # Live windows by name, of which this layer knows no more. They rely on the
        # topology, which stays while there are any.
        self.windows: dict[str, Any] = {}
        # Freed here, while other ranks may write to their memory.
        self.windows_in_doubt: list[Any] = []
        self.window_creations = 0
        self.win_ops_carry_p = False
        self.layout: MachineLayout = world.layout.restrict(self.ranks)
        self.group_id = _group_id(self.ranks, creation)
        if world.rank in self.ranks:
            self.rank: int = self.ranks.index(world.rank)
            world.add_group(self.group_id, self.ranks, self.layout.machine_of)
        else:
            self.rank = -1

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    @property
    def included(self) -> bool:
        """Whether this process is a member."""
        return self.rank >= 0

    @property
    def local_rank(self) -> int:
        """Position of this member on its machine."""
        return self.layout.local_rank(self._me())

    @property
    def local_size(self) -> int:
        """Number of members on this machine."""
        return self.layout.local_size(self._me())

    @property
    def machine_rank(self) -> int:
        """This machine's number."""
        return self.layout.machine_of[self._me()]

    @property
    def machine_size(self) -> int:
        """Number of machines."""
        return self.layout.machine_size

    @property
    def topology(self) -> Topology | None:
        """Topology of the members, or ``None`` while there is none."""
        return self._topology

    @property
    def machine_topology(self) -> Topology | None:
        """Topology of the machines, or ``None`` while there is none."""
        return self._machine_topology

    def use_topology(self, graph: nx.DiGraph[int], is_weighted: bool) -> None:
        """Put a graph of the members in force on this rank (no communication)."""
        self._topology = _in_force(graph, is_weighted, self._me())

    def use_machine_topology(self, graph: nx.DiGraph[int], is_weighted: bool) -> None:
        """Put a graph of the machines in force on this rank (no communication)."""
        self._machine_topology = _in_force(graph, is_weighted, self.machine_rank)

    def use_default_topologies(self) -> None:
        """Put ``ExponentialGraph``, unweighted, in force for members and machines."""
        self._topology = _default(self.size, self._me())
        self._machine_topology = _default(self.machine_size, self.machine_rank)

    def name_for(self, kind: str, name: str | None) -> str:
        """Return the given name, or one derived from the order of calls per kind.

        Raises:
            SuspendedError: Nothing may start now; so the call is not counted either.
        """
        self.world.check_running(kind, name)
        if name is not None:
            return name
        number = self._unnamed.get(kind, 0)
        self._unnamed[kind] = (number + 1) % _UNNAMED
        return f"{kind}.noname.{number}"

    def pair_name_for(self, kind: str, name: str | None, other: int) -> str:
        """Return a name that is counted apart for each pair of members."""
        low, high = sorted((self._me(), other))
        pair = f"{kind}.{low}-{high}"
        return self.name_for(pair, None) if name is None else f"{name}.{low}-{high}"

    def start(self, call: Call[Result]) -> Handle[Result]:
        """Start an operation among the members; see ``World.start``.

        Raises:
            TypeError: The name is not a string, or the deadline not a number.
            ValueError: The deadline is not above 0, or this process is not a member.
        """
        if self.rank < 0:
            self._me()
        if call.name is None:
            call.name = self.name_for(call.kind, None)
        elif not isinstance(call.name, str):
            raise TypeError(f"{call.kind}: name must be a string, got {call.name!r}")
        if call.timeout_s is not None:
            check_timeout(call.kind, call.timeout_s)
        call.group_id = self.group_id
        return self.world.start(call)

    def _me(self) -> int:
        if self.rank < 0:
            raise ValueError(
                f"rank {self.world.rank} is not a member of this process set "
                f"(ranks {list(self.ranks)}); only members may call its operations"
            )
        return self.rank

    def __repr__(self) -> str:
        return f"<Communicator of ranks {list(self.ranks)}>"


def check_timeout(kind: str, timeout_s: object) -> None:
    """Raise unless it can be a deadline.

    Raises:
        TypeError: It is no number.
        ValueError: It is not above 0.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, numbers.Real):
        raise TypeError(f"{kind}: timeout_s must be a number, got {timeout_s!r}")
    if not float(timeout_s) > 0:  # NaN is not either
        raise ValueError(f"{kind}: timeout_s must be above 0, got {timeout_s}")


def _in_force(graph: nx.DiGraph[int], is_weighted: bool, member: int) -> Topology:
    weights = resolve_weights(graph, is_weighted=is_weighted, rank=member)
    return Topology(lambda: graph, is_weighted, weights)


def _default(size: int, member: int) -> Topology:
    weights = default_weights(size, member)
    return Topology(lambda: ExponentialGraph(size), False, weights, is_default=True)


def _group_id(ranks: Sequence[int], creation: int) -> int:
    """Return a number that is equal on all members and differs between groups."""
    text = f"{creation}:{','.join(map(str, ranks))}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
