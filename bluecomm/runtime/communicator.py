"""Communicators: sets of ranks that operate together."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bluecomm.errors import BluecommError
from bluecomm.runtime.call import NO_MEMORY, Call, Result
from bluecomm.runtime.call_names import CallNames
from bluecomm.runtime.check_timeout import check_timeout
from bluecomm.runtime.epochs.coverage import OF_NEIGHBORS, OVERWRITING, is_covered
from bluecomm.runtime.epochs.epochs import Epochs
from bluecomm.runtime.failure import Reason
from bluecomm.runtime.handle import Handle
from bluecomm.runtime.layout import MachineLayout
from bluecomm.runtime.topology_in_force import (
    Topology,
    default_topology,
    resized_topology,
    topology_in_force,
)

if TYPE_CHECKING:
    import networkx as nx

    from bluecomm._native import Parameters
    from bluecomm.runtime.epochs.transaction import Transaction
    from bluecomm.runtime.world import World


class Communicator:
    """A set of ranks of the world; members are numbered 0 .. size - 1.

    Operations that take it as ``process_set`` act among its members. Every rank of the
    world must make the same communicators in the same order. Making a communicator
    needs no communication.

    Args:
        world: The world.
        ranks: Ranks of the members in the world.
        creation: Number of communicators of the same ranks and owner that were made
            before.
        owner: Library that made it. Libraries count their communicators separately, so
            the order between them does not matter.
        repeats: Whether its collectives are repeated among the members that are left,
            in a job that survives losses. Otherwise they fail when they need a lost
            rank. By default, those of a communicator without an owner are repeated.
        may_use_nccl: Whether NCCL may carry out its operations on tensors of a GPU. By
            default, it may if the communicator has no owner.
        may_exist: Whether the engine may know its members already, because an earlier
            attempt to make this communicator was interrupted by a signal handler.
        parent: For a subgroup, the id of the group of the communicator to which it
            belongs and with which it is freed. A member may free that communicator
            without having made the subgroup. ``None`` for other communicators.
    """

    def __init__(
        self,
        world: World,
        ranks: Sequence[int],
        creation: int = 0,
        owner: str = "",
        *,
        repeats: bool | None = None,
        may_use_nccl: bool | None = None,
        may_exist: bool = False,
        parent: int | None = None,
    ) -> None:
        self.world = world
        self.ranks = tuple(ranks)
        # The library that made it; empty for those of init() and of the program.
        self.owner = owner
        self.may_use_nccl = not owner if may_use_nccl is None else may_use_nccl
        # Whether this is the communicator that init() makes.
        self.is_world = creation == 0 and not owner
        self._names = CallNames(world.join_rounds)
        self._topology: Topology | None = None
        self._machine_topology: Topology | None = None
        # Windows by name; only the layer above knows their type. They rely on the
        # topology, which cannot change while there are any.
        self.windows: dict[str, Any] = {}
        # Windows freed here to whose memory other ranks may still write.
        self.windows_in_doubt: list[Any] = []
        self.window_creations = 0
        self.win_ops_carry_p = False
        self.layout: MachineLayout = world.layout.restrict(self.ranks)
        generation = world.assignment.epoch
        self.group_id = _group_id(self.ranks, creation, owner, generation)
        self._is_freed = False
        # Communicators of some members for operations inside of others.
        self._subgroups: dict[tuple[tuple[int, ...], str], Communicator] = {}
        # A signal handler may free the communicator while this thread makes one.
        self._subgroups_lock = threading.RLock()
        if world.rank in self.ranks:
            self.rank: int = self.ranks.index(world.rank)
            try:
                world.add_group(
                    self.group_id, self.ranks, self.layout.machine_of, parent
                )
            except ValueError:
                if not may_exist:
                    raise
            world.communicators[self.group_id] = self
        else:
            self.rank = -1
        self._epochs: Epochs | None = None
        if repeats is None:
            repeats = not owner
        if self.rank >= 0 and repeats and world.members.survives_losses:
            self._epochs = Epochs(
                self, lambda left, name: Communicator(world, left, owner=name)
            )

        # Whether this rank is the whole world, nothing records its calls, and none is
        # repeated. Then an operation that changes nothing need not be started.
        self.is_alone = (
            world.size == 1
            and self.rank == 0
            and self._epochs is None
            and world.recorder is None
        )

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    @property
    def ranks_left(self) -> tuple[int, ...]:
        """Ranks of the members that have not gone."""
        return self.ranks if self._epochs is None else self._epochs.ranks

    @property
    def is_joining(self) -> bool:
        """Whether these are all ranks of a job that this process has yet to join."""
        return self.is_world and self.world.is_joining

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
        """Topology of the members, or ``None`` before one is set."""
        return self._topology

    @property
    def machine_topology(self) -> Topology | None:
        """Topology of the machines, or ``None`` before one is set."""
        return self._machine_topology

    def use_topology(
        self,
        graph: nx.DiGraph[int],
        is_weighted: bool,
        factory: Callable[[int], nx.DiGraph[int]] | None = None,
    ) -> None:
        """Set the topology of the members on this rank, without communication."""
        self._topology = topology_in_force(graph, is_weighted, self._me(), factory)

    def use_machine_topology(self, graph: nx.DiGraph[int], is_weighted: bool) -> None:
        """Set the topology of the machines on this rank, without communication."""
        self._machine_topology = topology_in_force(
            graph, is_weighted, self.machine_rank
        )

    def use_default_topologies(self) -> None:
        """Set ``ExponentialGraph``, unweighted, as topology of members and machines."""
        self._topology = default_topology(self.size, self._me())
        self._machine_topology = default_topology(self.machine_size, self.machine_rank)

    def use_topologies_of(self, other: Communicator) -> None:
        """Take over the topologies of a communicator of the same ranks, or of fewer.

        A graph that was given without a function exists for one number of ranks or
        machines only. For another number, the default topology replaces it.
        """
        self._topology = resized_topology(
            other._topology, other.size, self.size, self._me()
        )
        self._machine_topology = resized_topology(
            other._machine_topology,
            other.machine_size,
            self.machine_size,
            self.machine_rank,
        )
        self.win_ops_carry_p = other.win_ops_carry_p

    def name_for(self, kind: str, name: str | None) -> str:
        """Return the given name, or one derived from the order of calls per kind.

        Raises:
            SuspendedError: The world is suspended. The call is not counted.
        """
        self.world.check_running(kind, name)
        if name is not None:
            return name
        return self._names.next(kind, self.world.join_rounds)

    def pair_name_for(self, kind: str, name: str | None, other: int) -> str:
        """Return a name for two members; each pair numbers its calls separately."""
        low, high = sorted((self._me(), other))
        pair = f"{kind}.{low}-{high}"
        return self.name_for(pair, None) if name is None else f"{name}.{low}-{high}"

    def check_member(self) -> None:
        """Raise unless this process is a member.

        Raises:
            ValueError: It is not, or the set has been freed.
        """
        self._me()

    def start(self, call: Call[Result]) -> Handle[Result]:
        """Start an operation among the members; see ``World.start``.

        Raises:
            TypeError: The name is not a string, or the deadline not a number.
            ValueError: The deadline is not above 0, or this process is not a member.
        """
        if self.rank < 0:
            self._me()
        if self.is_world and self.world.is_joining:
            raise self._not_joined(call.kind, call.name)
        if call.timeout_s is not None:
            check_timeout(call.kind, call.timeout_s)
        if call.name is None:
            call.name = self.name_for(call.kind, None)
        elif not isinstance(call.name, str):
            raise TypeError(f"{call.kind}: name must be a string, got {call.name!r}")
        if self._epochs is not None and is_covered(call):
            return self._epochs.transactions.start(call)
        call.enter(self)
        return self.world.start(call)

    def subgroup(
        self, members: Sequence[int], purpose: str, *, repeats: bool = False
    ) -> Communicator:
        """Return a communicator of some members, which lives as long as this one.

        Its members make it when they need it, without communication.

        Args:
            members: Numbers of the members, which contain this one.
            purpose: Names the communicator, beside its members.
            repeats: As for the communicator.
        """
        ranks = tuple(self.ranks[member] for member in members)
        with self._subgroups_lock:
            found = self._subgroups.get((ranks, purpose))
            if found is None:
                owner = f"{purpose} of {self.group_id} "
                found = Communicator(
                    self.world,
                    ranks,
                    owner=owner,
                    repeats=repeats,
                    may_use_nccl=self.may_use_nccl,
                    may_exist=True,
                    parent=self.group_id,
                )
                self._subgroups[ranks, purpose] = found
            return found

    @property
    def has_subgroups(self) -> bool:
        """Whether operations of some members only are those of a subgroup.

        NCCL needs all members of a group. The answer is the same on all members, so
        that their calls meet, also where one has a tensor on the host.
        """
        return self.world.device_transport.path == "nccl" and not self.is_repeated

    @functools.cached_property
    def machine_group(self) -> Communicator:
        """The members on this machine, as a subgroup."""
        return self.subgroup(self.layout.members(self.machine_rank), "machine")

    @functools.cached_property
    def neighbors_group(self) -> Communicator:
        """The members at this member's position on each machine, as a subgroup.

        They are in the order of their machines, which have as many members each.
        """
        return self.subgroup(
            [
                self.layout.members(machine)[self.local_rank]
                for machine in range(self.machine_size)
            ],
            "neighbors",
        )

    @functools.cached_property
    def first_ranks_group(self) -> Communicator:
        """The first member on each machine, as a subgroup of which this one is."""
        machines = range(self.machine_size)
        return self.subgroup(
            [self.layout.members(machine)[0] for machine in machines], "first ranks"
        )

    @property
    def is_repeated(self) -> bool:
        """Whether the members that are left repeat collectives after a loss."""
        return self._epochs is not None

    def calls_like(self, call: Call[Any]) -> int:
        """Return how many calls of the kind and name of a call this rank has started.

        It is the same on all members when they have started the call.
        """
        if self._epochs is not None and is_covered(call):
            return self._epochs.transactions.calls_like(call)
        return self.world.engine.calls_like(call)

    def calls_of(self, kind: str, name: str) -> int:
        """Return how many calls of a kind and name this member has counted.

        They are those that it has started and those that it has refused.
        """
        return self.calls_like(self._call_without_tensor(kind, name, None))

    def keeps_input(self, kind: str) -> bool:
        """Return whether calls of a kind need their input again after a loss."""
        return self._epochs is not None and kind in OVERWRITING

    def is_in_flight(self, kind: str, name: str) -> bool:
        """Return whether a call of this kind and name has not ended on this rank."""
        if self._epochs is not None and self._epochs.transactions.is_in_flight(
            kind, name
        ):
            return True
        return self.world.engine.is_in_flight(kind, self.group_id, name)

    def begin_together(
        self, name: str, calls: int, *, in_background: bool
    ) -> Transaction | None:
        """Return a transaction for collectives whose results are released together.

        Args:
            name: Name by which the ranks' transactions are matched, in their order.
            calls: Number of the collectives.
            in_background: Whether other operations may be waited for before it.

        Returns:
            The transaction; ``None`` if the job ends with the first loss.
        """
        if self._epochs is None:
            return None
        return self._epochs.transactions.begin(name, calls, in_background=in_background)

    def refuse(
        self, kind: str, name: str, reason: Reason, parameters: Parameters | None
    ) -> None:
        """Count an operation that this member does not start, and tell the others.

        Their calls of it fail with ``reason``.

        Args:
            kind: The engine's name of the operation.
            name: Its name.
            reason: Why this rank does not start it.
            parameters: Its parameters, which decide which members take part; all, if
                there are none.

        Raises:
            ValueError: The engine has no operation of this kind.
            ShutdownError: After ``shutdown``, or in a forked child.
            SuspendedError: The world is suspended. The call is not counted.
        """
        if self.rank < 0:
            return
        call = self._call_without_tensor(kind, name, parameters)
        if self._epochs is not None and is_covered(call):
            self._epochs.transactions.refuse(call, reason)
            return
        if kind in OF_NEIGHBORS and self.world.device_transport.path == "nccl":
            # The other ranks' calls may go through NCCL, or through the host.
            # Without the pair it would be unknown whose call a pair_gossip is.
            pair = parameters if kind == "pair_gossip" else None
            self._refuse_in_epoch(kind, name, reason, pair)
        self.world.refuse(call, reason)

    def _refuse_in_epoch(
        self, kind: str, name: str, reason: Reason, parameters: Parameters | None
    ) -> None:
        """Refuse a call that the others may make as a transaction."""
        if self._epochs is None:
            return
        call = self._call_without_tensor(kind, name, parameters)
        self._epochs.transactions.refuse(call, reason)

    def _call_without_tensor(
        self, kind: str, name: str, parameters: Parameters | None
    ) -> Call[None]:
        """Return a call that is not made, but counted."""
        call = Call(kind, "uint8", (), NO_MEMORY, NO_MEMORY, (), lambda _: None)
        call.name = name
        call.parameters = parameters
        call.group_id = self.group_id
        return call

    def free(self) -> None:
        """Forget the set on this rank, with all that the engine keeps for it.

        Call it on each rank that is done with the set; it needs no communication, and
        the ranks need not call it in the same order. Operations of the set that are
        outstanding fail, here and on the other members, and so do later ones of members
        that have not freed it: all raise ``ShutdownError``. A ``recv`` from a rank that
        has freed the set still receives what that rank sent before. A rank whose
        operation has finished may free the set although others still work on theirs.

        Raises:
            ValueError: The set consists of all ranks of the world and lives as long.
        """
        if self.is_world:
            raise ValueError(
                "the communicator of all ranks cannot be freed; shutdown() ends it"
            )
        if self._is_freed:
            return
        self._is_freed = True
        if self._epochs is not None:
            self._epochs.close()
        with self._subgroups_lock:
            subgroups = list(self._subgroups.values())
            self._subgroups.clear()
        for subgroup in subgroups:
            subgroup.free()
        if self.rank >= 0:
            self.rank = -1  # start() refuses every call
            self.is_alone = False
            self.world.remove_group(self.group_id)

    def _not_joined(self, kind: str, name: str | None) -> BluecommError:
        return BluecommError.describe(
            "this rank was started while the job ran, and has not joined it yet, so "
            "the other ranks do not make this call",
            operation=kind,
            name=name,
            rank=self.world.rank,
            remedy="Make it in the function that bluecomm.elastic.run calls",
        )

    def _me(self) -> int:
        if self._is_freed:
            raise ValueError(
                f"this process set (ranks {list(self.ranks)}) has been freed on rank "
                f"{self.world.rank}; make another one"
            )
        if self.rank < 0:
            raise ValueError(
                f"rank {self.world.rank} is not a member of this process set "
                f"(ranks {list(self.ranks)}); only members may call its operations"
            )
        return self.rank

    def __deepcopy__(self, _: dict[int, Any]) -> Communicator:
        """Return this object: a copied module communicates with the same ranks."""
        return self

    def __repr__(self) -> str:
        return f"<Communicator of ranks {list(self.ranks)}>"


def _group_id(ranks: Sequence[int], creation: int, owner: str, generation: int) -> int:
    """Return a number that is the same on all members and differs between groups.

    It differs between generations, too. Each begins to count the calls of a group
    anew, and a timeline must not take two of these calls for one.
    """
    text = f"{owner}{creation}:{','.join(map(str, ranks))}"
    if generation:
        text += f" of {generation}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
