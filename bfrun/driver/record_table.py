"""Collects a record of every rank for all ranks. Does no I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bfrun.channel import MAX_FRAME_NBYTES
from bfrun.frames.driver_to_rank import RecordList, RecordsMissing
from bfrun.frames.frame import Frame
from bfrun.wording import format_ranks

# All records travel in one frame, which holds more than the records.
MAX_TABLE_NBYTES = MAX_FRAME_NBYTES - (1 << 20)
# The frames to send, each with the ranks that get it.
Answers = list[tuple[list[int], Frame]]


@dataclass
class _Round:
    records: dict[int, Any] = field(default_factory=dict)
    nbytes: int = 0
    deadline: float = 0.0


class RecordTable:
    """Collects the records of each round.

    Args:
        world_size: Number of ranks that must publish.
        timeout_s: Seconds from the first record of a round to the last.

    Attributes:
        has_met: Whether all ranks have published a record in some round.
    """

    def __init__(self, world_size: int, timeout_s: float) -> None:
        self._world_size = world_size
        self._timeout_s = timeout_s
        self._rounds: dict[int, _Round] = {}
        self._gone: dict[int, str] = {}
        self.has_met = False

    def publish(self, rank: int, number: int, record: Any, now: float) -> Answers:
        """Take a record. If it is the last one of its round, answer all ranks."""
        current = self._rounds.setdefault(
            number, _Round(deadline=now + self._timeout_s)
        )
        current.records[rank] = record
        current.nbytes += len(json.dumps(record))
        if current.nbytes > MAX_TABLE_NBYTES:
            return self._close(number, _too_large(current.nbytes))
        if len(current.records) == self._world_size:
            del self._rounds[number]
            self.has_met = True
            records = [current.records[r] for r in range(self._world_size)]
            everyone = sorted(current.records)
            return [(everyone, RecordList(round=number, records=records))]
        return self._close_hopeless()

    def rank_ended(self, rank: int, why: str) -> Answers:
        """Note that a rank has ended, and close the rounds that still need it."""
        self._gone[rank] = why
        return self._close_hopeless()

    def returned(self, ranks: Iterable[int], world_size: int) -> None:
        """Note that more processes take part in later rounds.

        Args:
            ranks: Their ranks, of which earlier processes may have ended.
            world_size: Number of ranks that must publish from now on.
        """
        self._world_size = world_size
        for rank in ranks:
            self._gone.pop(rank, None)

    def expire(self, now: float) -> Answers:
        """Close the rounds whose time is up."""
        answers: Answers = []
        for number, current in tuple(self._rounds.items()):
            if now >= current.deadline:
                why = f"within {self._timeout_s:g} s"
                answers += self._close(number, self._absent(current, why))
        return answers

    def _close_hopeless(self) -> Answers:
        answers: Answers = []
        for number, current in tuple(self._rounds.items()):
            never = [rank for rank in self._gone if rank not in current.records]
            if never:
                causes = "; ".join(self._gone[rank] for rank in never[:3])
                text = self._absent(current, f"and never will: {causes}")
                answers += self._close(number, text)
        return answers

    def _missing(self, current: _Round) -> list[int]:
        return [r for r in range(self._world_size) if r not in current.records]

    def _absent(self, current: _Round, why: str) -> str:
        absent = format_ranks(self._missing(current), noun=True)
        present = format_ranks([*current.records], noun=True)
        return (
            f"init: {absent} did not call bluecomm.init {why} "
            f"({present} did). Every rank must call it; "
            "--start-timeout sets the limit"
        )

    def _close(self, number: int, text: str) -> Answers:
        current = self._rounds.pop(number)
        frame = RecordsMissing(round=number, ranks=self._missing(current), text=text)
        return [(sorted(current.records), frame)]


def _too_large(nbytes: int) -> str:
    return (
        f"init: the records of the ranks have {nbytes} bytes together, but at most "
        f"{MAX_TABLE_NBYTES} are allowed"
    )
