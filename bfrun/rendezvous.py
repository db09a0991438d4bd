"""The meeting of all ranks: each publishes a record, all get the table. Pure state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bfrun.channel import Frame

# Which ranks get which frame.
Answers = list[tuple[list[int], Frame]]


@dataclass
class _Round:
    records: dict[int, Any] = field(default_factory=dict)
    deadline: float = 0.0


class Rendezvous:
    """Collects the records of each round.

    Args:
        world_size: Number of ranks that must publish.
        timeout_s: Seconds from the first record of a round to the last.
    """

    def __init__(self, world_size: int, timeout_s: float) -> None:
        self._world_size = world_size
        self._timeout_s = timeout_s
        self._rounds: dict[int, _Round] = {}
        self._gone: dict[int, str] = {}

    def publish(self, rank: int, number: int, record: Any, now: float) -> Answers:
        """Take a record; answer all ranks when it was the last one of its round."""
        current = self._rounds.setdefault(
            number, _Round(deadline=now + self._timeout_s)
        )
        current.records[rank] = record
        if len(current.records) == self._world_size:
            del self._rounds[number]
            records = [current.records[r] for r in range(self._world_size)]
            everyone = sorted(current.records)
            return [(everyone, {"type": "table", "round": number, "records": records})]
        return self._close_hopeless()

    def gone(self, rank: int, why: str) -> Answers:
        """Note that a rank has ended: rounds that still need it will never be full."""
        self._gone[rank] = why
        return self._close_hopeless()

    def expire(self, now: float) -> Answers:
        """Answer the rounds whose time is up."""
        answers: Answers = []
        for number, current in tuple(self._rounds.items()):
            if now >= current.deadline:
                answers += self._close(number, f"within {self._timeout_s:g} s")
        return answers

    def _close_hopeless(self) -> Answers:
        answers: Answers = []
        for number, current in tuple(self._rounds.items()):
            never = [rank for rank in self._gone if rank not in current.records]
            if never:
                why = "; ".join(self._gone[rank] for rank in never[:3])
                answers += self._close(number, f"and never will: {why}")
        return answers

    def _close(self, number: int, why: str) -> Answers:
        came = sorted(self._rounds.pop(number).records)
        missing = [rank for rank in range(self._world_size) if rank not in came]
        text = (
            f"init: {_ranks(missing)} did not call bluecomm.init {why} "
            f"(have come: {_ranks(came)}). Every rank must call it; "
            "--start-timeout sets the limit"
        )
        frame: Frame = {"type": "missing", "round": number, "ranks": missing}
        return [(came, {**frame, "text": text})]


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
