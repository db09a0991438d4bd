"""Collects what every rank waits for when one has waited long. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bfrun.frames.driver_to_rank import StallTable
from bfrun.frames.parts import OutstandingOperation, ProcessState, RankSnapshot

ANSWER_LIMIT_S = 2.0
_NO_ANSWER = "no answer"
_UNKNOWN = ProcessState(pid=0, state=_NO_ANSWER, cpu_s=0.0, idle_s=0.0)


@dataclass
class _Query:
    number: int
    deadline: float
    askers: dict[int, str] = field(default_factory=dict)
    operations: dict[int, list[OutstandingOperation]] = field(default_factory=dict)
    processes: dict[int, ProcessState] = field(default_factory=dict)


class StallTracker:
    """Answers ranks that stall with a table of what every rank does.

    One query serves all ranks that ask while it is under way.

    Args:
        hosts: Host name of each rank.
    """

    def __init__(self, hosts: Mapping[int, str]) -> None:
        self._hosts = hosts
        self._query: _Query | None = None
        self._count = 0

    @property
    def asked(self) -> bool:
        """Whether a rank waits for a report."""
        return self._query is not None

    def ask(self, rank: int, operation: str, now: float) -> int | None:
        """Note that ``rank`` stalls in ``operation``.

        Returns:
            Number of a new query to send to all ranks and agents, or None if the query
            under way serves this rank, too.
        """
        fresh = self._query is None
        if self._query is None:
            self._count += 1
            self._query = _Query(self._count, now + ANSWER_LIMIT_S)
        self._query.askers[rank] = operation
        return self._query.number if fresh else None

    def pending(
        self, rank: int, number: int, operations: list[OutstandingOperation]
    ) -> None:
        """Take a rank's answer: its outstanding operations."""
        if self._query is not None and self._query.number == number:
            self._query.operations[rank] = operations

    def inspected(self, number: int, processes: Mapping[str, ProcessState]) -> None:
        """Take an agent's answer: the states of its ranks' processes."""
        if self._query is not None and self._query.number == number:
            found = {int(rank): process for rank, process in processes.items()}
            self._query.processes.update(found)

    def reports(self, expected: set[int], now: float) -> list[tuple[int, StallTable]]:
        """Return (asker, table) pairs once all have answered or the time is up.

        Args:
            expected: Ranks that can still answer.
            now: Seconds on the same clock as for ``ask``.
        """
        query = self._query
        if query is None:
            return []
        complete = expected <= set(query.operations) and len(query.processes) == len(
            self._hosts
        )
        if not complete and now < query.deadline:
            return []
        self._query = None
        table = {str(rank): self._entry(query, rank) for rank in self._hosts}
        return [
            (rank, StallTable(op=operation, ranks=table))
            for rank, operation in query.askers.items()
        ]

    def _entry(self, query: _Query, rank: int) -> RankSnapshot:
        process = query.processes.get(rank, _UNKNOWN)
        state = process.state
        if state == "running" and rank not in query.operations:
            state = _NO_ANSWER
        return RankSnapshot(
            host=self._hosts[rank],
            pid=process.pid,
            state=state,
            cpu_s=process.cpu_s,
            idle_s=process.idle_s,
            ops=query.operations.get(rank, []),
        )
