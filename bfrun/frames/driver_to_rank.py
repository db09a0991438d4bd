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
    """A rank has failed. Operations that wait for it fail with ``text``.

    ``stay`` says which of the rank's processes has failed.
    """

    rank: int
    host: str
    cause: str
    text: str
    stay: int = 0


class RankFinished(Frame, kind="finished", route=DRIVER_TO_RANK):
    """A rank has ended without failing.

    ``cause`` and ``text`` are empty after ``goodbye``.
    """

    rank: int
    host: str
    cause: str = ""
    text: str = ""
    stay: int = 0


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


class StopNotice(Frame, kind="stop_notice", route=DRIVER_TO_RANK):
    """The job will be ended soon. Ranks that ask stop at the same step."""


class LeaveNotice(Frame, kind="leave_notice", route=DRIVER_TO_RANK):
    """The rank leaves the job at its next commit, because its slot will end."""


class QueryPending(Frame, kind="query_pending", route=DRIVER_TO_RANK):
    """Asks for the rank's outstanding operations; ``pending`` answers it."""

    id: int


class StallTable(Frame, kind="stall_report", route=DRIVER_TO_RANK):
    """Answers ``stall``: the state and the operations of every rank."""

    op: str
    ranks: dict[str, RankSnapshot]


class Invite(Frame, kind="invite", route=DRIVER_TO_RANK):
    """Asks ranks and newcomers to make the next generation; ``join_record`` answers.

    ``stays`` is the ``stay`` of each rank's process in that generation, or -1 for the
    ranks in ``missing``, which take no part. It has an entry for each rank, of which
    there may be more than in the generation before. ``sides`` has the side of a
    partition on which each rank has trained: 0 for the primary and for new processes.
    It is empty if there was no partition. Ranks of other sides are newcomers, too.
    """

    generation: int
    newcomers: list[int]
    stays: list[int]
    missing: list[int]
    sides: list[int]


class JoinTable(Frame, kind="join_table", route=DRIVER_TO_RANK):
    """Ends the rendezvous of a generation, with the records of all ranks in order.

    Missing ranks have the record null.
    """

    generation: int
    records: list[Any]


class JoinOpen(Frame, kind="join_open", route=DRIVER_TO_RANK):
    """All ranks and newcomers of a generation are ready, so they may change to it."""

    generation: int


class JoinCancelled(Frame, kind="join_cancelled", route=DRIVER_TO_RANK):
    """The ranks will not change to this generation.

    Newcomers get another invitation.
    """

    generation: int
    text: str
