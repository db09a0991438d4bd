"""One call of an operation, as it travels from the operations to the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from bluecomm._native import Gate, NcclCall, Parameters
    from bluecomm.runtime.parts_handle import ResultParts

Result = TypeVar("Result")

# Address and length in bytes.
Span = tuple[int, int]
NO_MEMORY: Span = (0, 0)

# Deadline, in seconds, of a call that a rank which has joined makes for others. They
# have deadlines of their own, and tell this rank when these have passed.
CALLERS_LIMIT_S = 365 * 24 * 3600.0

# Name of the barrier in which a rank that has finished waits for the others.
FAREWELL = "bluecomm.shutdown"


class GroupMembers(Protocol):
    """The attributes of a communicator that its calls use.

    Attributes:
        group_id: The engine's number of the group.
        rank: Number of this member.
        ranks: Ranks of the members in the world.
    """

    group_id: int
    rank: int
    ranks: tuple[int, ...]


class Tickets(Protocol):
    """Makes the tickets of a call that NCCL carries out: one in each group."""

    def make(self, group: GroupMembers) -> NcclCall:
        """Return the ticket of the call among the members of a group."""

    def withdraw(self) -> None:
        """End the ticket that was made last, because the engine has not got it."""


class Call(Generic[Result]):
    """One call of an operation: its tensors, name, deadline and parameters.

    An operation makes it once. ``Communicator.start`` fills in a missing name and the
    group, ``World.start`` fills in the deadline, and ``native/bindings/call.cpp`` reads
    all of it. The world keeps the call until the operation has finished.

    Args:
        kind: The engine's name of the operation.
        dtype: The engine's name of the element type.
        shape: Shape of the input.
        source: Memory of the input.
        destination: Memory of the result, or a list with the memory of its parts;
            ``NO_MEMORY`` if the engine allocates it.
        keep: Objects that must live until the operation has finished.
        finish: Makes the result from the engine's number of the operation.

    Attributes:
        parts: Takes parts of the result in ``wait``, before the operation has ended;
            ``None`` if it is taken as a whole. Such a call is not blocking.
        name: Name by which the ranks' calls are matched. It is ``None`` until
            ``Communicator.start`` derives one from the order of calls.
        timeout_s: Deadline that the caller gave. ``None`` stands for the configured
            deadline, which is extended while the awaited ranks are alive and busy.
        parameters: Parameters of the kind. ``None`` stands for the defaults.
        blocking: Whether the caller waits for the operation at once. The engine then
            runs it in the calling thread, and it has finished on return, unless it
            failed, a signal came or its result must be fetched.
        group_id: Group that takes part.
        group: GroupMembers of the group; ``None`` if only its number is known.
        limit_s: Deadline in force; 0 until the call is passed to the engine.
        contributors: Number of members whose inputs the result contains, in a job that
            survives losses; otherwise 0.
        gate: Opens when the input has been written; ``None`` if it has been already.
            Receives have none.
        tickets: Makes ``ticket`` when the call is passed to the engine, if NCCL carries
            it out. Such a call has no memory.
        ticket: Orders the call if NCCL carries it out, and ``None`` if the engine does.
        precedes_ticket: Whether the call exchanges facts about one that NCCL carries
            out afterwards. It matches only such calls.
        follows: Whether it is a later call of an operation that takes several. All
            members of the first one make it, also those that have joined.
        raises_late: Whether it raises the failures of earlier calls that had succeeded
            on this rank. If not, the next call that does raises them.
        any_root: Whether the lowest member that is left may take the place of a root
            that is lost, because the values of any member would do.
        has_parts: Whether its arguments have a part for each member, lost ones too, as
            those of some kinds always have.
        is_standing: Whether it waits for a message that may come at any time, so that
            a long wait is no stall.
    """

    __slots__ = (
        "any_root",
        "blocking",
        "contributors",
        "destination",
        "dtype",
        "finish",
        "follows",
        "gate",
        "group",
        "group_id",
        "has_parts",
        "is_standing",
        "keep",
        "kind",
        "limit_s",
        "name",
        "parameters",
        "parts",
        "precedes_ticket",
        "raises_late",
        "shape",
        "source",
        "ticket",
        "tickets",
        "timeout_s",
    )

    def __init__(
        self,
        kind: str,
        dtype: str,
        shape: Sequence[int],
        source: Span,
        destination: Span | list[Span],
        keep: tuple[object, ...],
        finish: Callable[[int], Result],
    ) -> None:
        self.kind = kind
        self.dtype = dtype
        self.shape = shape
        self.source = source
        self.destination = destination
        self.keep = keep
        self.finish = finish
        self.parts: ResultParts | None = None
        self.name: str | None = None
        self.timeout_s: float | None = None
        self.parameters: Parameters | None = None
        self.blocking = False
        self.gate: Gate | None = None
        self.tickets: Tickets | None = None
        self.ticket: NcclCall | None = None
        self.precedes_ticket = False
        self.follows = False
        self.raises_late = True
        self.group: GroupMembers | None = None
        self.group_id = 0
        self.limit_s = 0.0
        self.contributors = 0
        self.any_root = False
        self.has_parts = False
        self.is_standing = False

    def enter(self, group: GroupMembers) -> None:
        """Make it a call of these members."""
        self.group, self.group_id = group, group.group_id

    @property
    def is_submitted(self) -> bool:
        """Whether the call has been passed to the engine, which may have refused it."""
        return self.limit_s > 0.0

    def uses(self, address: int, nbytes: int) -> bool:
        """Return whether the call reads or writes some of this memory."""
        given = self.destination
        spans = [self.source, *(given if isinstance(given, list) else [given])]
        return _overlap(spans, address, nbytes)


class KeptMemory:
    """Memory that a request about a window reads until it has ended.

    Args:
        owner: Object that owns the memory.
        memory: Address and length.
    """

    __slots__ = ("_memory", "_owner")

    def __init__(self, owner: object, memory: Span) -> None:
        self._owner = owner
        self._memory = memory

    def uses(self, address: int, nbytes: int) -> bool:
        """Return whether the request reads some of this memory."""
        return _overlap([self._memory], address, nbytes)


def _overlap(spans: Sequence[Span], address: int, nbytes: int) -> bool:
    return any(
        start < address + nbytes and address < start + length
        for start, length in spans
        if length
    )
