"""Frames from the driver to a rank, which its agent passes on in ``ToRanks``.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

from typing import Any

from bfrun.frames.frame import Frame, Route
from bfrun.frames.parts import RankSnapshot

DRIVER_TO_RANK = Route("driver", "rank")


class RecordList(Frame, kind="table", route=DRIVER_TO_RANK):
    """Ends a round of the rendezvous, with the records of all ranks in order."""

    round: int
    records: list[Any]


class RecordsMissing(Frame, kind="missing", route=DRIVER_TO_RANK):
    """Ends a round of the rendezvous in which some ranks did not publish in time."""

    round: int
    ranks: list[int]
    text: str


class RankLost(Frame, kind="lost", route=DRIVER_TO_RANK):
    """A rank has failed. Operations that wait for it fail with ``text``."""

    rank: int
    host: str
    cause: str
    text: str


class RankFinished(Frame, kind="finished", route=DRIVER_TO_RANK):
    """A rank has ended without failing.

    ``cause`` and ``text`` are empty after ``goodbye``.
    """

    rank: int
    host: str
    cause: str = ""
    text: str = ""


class RankFrozen(Frame, kind="frozen", route=DRIVER_TO_RANK):
    """Warns that a rank's process has been stopped (state T) for 10 s."""

    rank: int
    host: str
    seconds: float
    text: str


class RankDamaged(Frame, kind="damaged", route=DRIVER_TO_RANK):
    """Warns that an exception has ended a thread of a rank that still runs."""

    rank: int
    host: str
    text: str


class QueryPending(Frame, kind="query_pending", route=DRIVER_TO_RANK):
    """Asks for the rank's outstanding operations; ``pending`` answers it."""

    id: int


class StallTable(Frame, kind="stall_report", route=DRIVER_TO_RANK):
    """Answers ``stall``: the state and the operations of every rank."""

    op: str
    ranks: dict[str, RankSnapshot]
