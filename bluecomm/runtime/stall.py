"""Reports about an operation that waits for other ranks, as a table to print."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bfrun.wording import count, format_ranks

if TYPE_CHECKING:
    from bfrun.frames.driver_to_rank import StallTable
    from bfrun.frames.parts import OutstandingOperation
    from bluecomm._native import PendingRequest

# A younger operation may have been caught in a report by chance.
_SETTLED_S = 5.0

# A rank may have thousands of requests outstanding; this many are shown.
_SHOWN = 4


@dataclasses.dataclass(frozen=True)
class RankState:
    """One rank as the agents saw it, and its outstanding operations."""

    rank: int
    host: str
    pid: int
    state: str
    idle_s: float
    operations: tuple[OutstandingOperation, ...]

    def blocked_in(self) -> OutstandingOperation | None:
        """Return the operation in which the rank's program blocks, if it does."""
        for operation in self.operations:
            if operation.blocking and operation.age_s > _SETTLED_S:
                return operation
        return None

    def has(self, name: str, group: int | None = None) -> bool:
        """Return whether an operation of that name, and group, is outstanding there."""
        return any(
            operation.name == name and group in (None, operation.group)
            for operation in self.operations
        )

    def __str__(self) -> str:
        where = f"  rank {self.rank} on {self.host} (pid {self.pid}, {self.state}"
        if self.state == "running":
            where += f", CPU last used {self.idle_s:.0f} s ago"
        return f"{where}): {_describe(self.operations) or 'in no operation'}"


@dataclasses.dataclass(frozen=True)
class StallReport:
    """An operation that waits, and the states of the ranks.

    ``others`` is the number of other operations of this rank that have waited as long.
    """

    rank: int
    kind: str
    name: str
    age_s: float
    waiting_for: tuple[int, ...]
    wish: str
    received_bytes: int
    expected_bytes: int
    others: int
    states: dict[int, RankState]

    @classmethod
    def alone(
        cls, rank: int, operation: PendingRequest, others: int = 0
    ) -> StallReport:
        """Return the report of a rank that has no agent to ask."""
        return cls(
            rank,
            operation["kind"],
            operation["name"],
            operation["age_s"],
            tuple(operation["waiting_for"]),
            operation["wish"],
            operation["received_bytes"],
            operation["expected_bytes"],
            others,
            {},
        )

    @classmethod
    def from_table(
        cls,
        rank: int,
        operation: PendingRequest,
        table: StallTable,
        others: int = 0,
    ) -> StallReport:
        """Return the report with the states that the driver has gathered."""
        states = {
            int(number): RankState(
                rank=int(number),
                host=state.host,
                pid=state.pid,
                state=state.state,
                idle_s=state.idle_s,
                operations=tuple(state.ops),
            )
            for number, state in table.ranks.items()
        }
        return dataclasses.replace(cls.alone(rank, operation, others), states=states)

    def excuses_all(self, within_s: float) -> bool:
        """Return whether all awaited ranks are busy, or wait for such ranks.

        Args:
            within_s: A rank is busy if it has used its processor within this time.
        """
        if self.wish and not self.waiting_for:
            return False  # it waits for the GPU of this rank, not for a rank
        return all(self._excuses(rank, within_s, ()) for rank in self.waiting_for)

    def _excuses(self, rank: int, within_s: float, path: tuple[int, ...]) -> bool:
        state = self.states.get(rank)
        if state is None or state.state != "running" or rank in path:
            return False
        if state.idle_s <= within_s:
            return True
        awaited = {r for one in state.operations for r in one.waiting_for}
        return bool(awaited) and all(
            self._excuses(other, within_s, (*path, rank)) for other in awaited
        )

    def find_cycle(
        self, link_timeout_s: float = 0.0, *, groups_last: bool = True
    ) -> str | None:
        """Return the error if blocking calls wait for each other in a circle.

        For example, rank a waits for b in 'x', which b has not called, because b blocks
        in 'y' and waits there for a, possibly through other ranks. Such ranks would
        wait forever.

        Args:
            link_timeout_s: How long a network between hosts may carry nothing. Calls of
                different hosts must have waited longer: a rank may have ended the call
                that another one is in, and its data may still be on its way.
            groups_last: Whether ranks whose calls belong to different groups never
                meet. In jobs that survive losses one of them may still have to hear of
                the next group.
        """
        mine = self.states[self.rank].blocked_in() if self.rank in self.states else None
        if mine is None or mine.name != self.name or mine.age_s > self.age_s:
            return None  # the states were taken before this call
        path = [self.rank]
        while True:
            here = self.states.get(path[-1])
            blocked = here.blocked_in() if here else None
            if here is None or blocked is None:
                return None
            absent = [
                rank
                for rank in blocked.waiting_for
                if rank in self.states
                and not self.states[rank].has(
                    blocked.name, blocked.group if groups_last else None
                )
                and self.states[rank].blocked_in() is not None
                and (
                    here.host == self.states[rank].host
                    or blocked.age_s > link_timeout_s + _SETTLED_S
                )
            ]
            if not absent:
                return None
            if absent[0] in path:
                return self._describe_cycle(path[path.index(absent[0]) :])
            path.append(absent[0])

    def _describe_cycle(self, ranks: list[int]) -> str:
        calls, names = [], set()
        for rank, follower in zip(ranks, [*ranks[1:], ranks[0]], strict=True):
            blocked = self.states[rank].blocked_in()
            assert blocked is not None
            names.add(blocked.name)
            calls.append(
                f"rank {rank} is in {blocked.kind} {blocked.name!r} and waits "
                f"for rank {follower}"
            )
        what = "blocking calls in crossed order"
        remedy = (
            "Call the operations in one order on all ranks, or use their nonblocking "
            "forms"
        )
        if len(names) == 1:
            what = "calls of one name by different sets of ranks"
            remedy = (
                "Pass the same process_set and is_hierarchical_local on all ranks, or "
                "give the calls different names"
            )
        return (
            f"{self.kind} {self.name!r} on rank {self.rank}: {what}, which can never "
            f"meet: {'; '.join(calls)}. {remedy}."
        )

    def __str__(self) -> str:
        head = (
            f"{self.kind} {self.name!r} on rank {self.rank} has waited "
            f"{self.age_s:.0f} s for {_awaited(self.waiting_for, self.wish)}"
        )
        if self.received_bytes < self.expected_bytes:
            head += f" (received {self.received_bytes} of {self.expected_bytes} bytes)"
        if self.others:
            head += f"; so have {count(self.others, 'more operation')}"
        shown = [self.states[rank] for rank in sorted(self.states)]
        return "\n".join([head, *(str(state) for state in shown)])


def _describe(operations: Sequence[OutstandingOperation]) -> str:
    """Return one line about operations; equal ones are counted."""
    alike: dict[tuple[Any, ...], list[OutstandingOperation]] = {}
    for one in operations:
        awaited = _awaited(one.waiting_for, one.wish)
        alike.setdefault((one.kind, one.name, awaited), []).append(one)
    parts = []
    for (kind, name, awaited), members in list(alike.items())[:_SHOWN]:
        times = f"{len(members)} times " if len(members) > 1 else ""
        age_s = max(one.age_s for one in members)
        parts.append(f"{times}{kind} {name!r} for {age_s:.0f} s (waits for {awaited})")
    hidden = sum(len(members) for members in list(alike.values())[_SHOWN:])
    return ", ".join(parts) + (
        f", and {count(hidden, 'more operation')}" if hidden else ""
    )


def _awaited(ranks: Sequence[int], wish: str) -> str:
    if not ranks:
        return wish or "its turn"
    text = format_ranks(ranks, noun=True)
    return f"{text} {wish}" if wish else text
