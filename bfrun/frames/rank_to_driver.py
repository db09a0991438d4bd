"""Frames from a rank to the driver, which its agent passes on in ``FromRank``.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

from typing import Any

from bfrun.frames.frame import Frame, Route
from bfrun.frames.parts import OutstandingOperation

RANK_TO_DRIVER = Route("rank", "driver")


class Publish(Frame, kind="publish", route=RANK_TO_DRIVER):
    """The rank's record for one round of the rendezvous. Every rank publishes one."""

    round: int
    record: Any


class Goodbye(Frame, kind="goodbye", route=RANK_TO_DRIVER):
    """The rank has shut down cleanly, so its exit is not a failure."""


class Failing(Frame, kind="failing", route=RANK_TO_DRIVER):
    """An error has ended the rank's program; its process will exit with ``status``.

    ``deed`` is a phrase such as "raised KeyError"; ``peers`` are the lost ranks that
    the error names.
    """

    cause: str
    deed: str
    reason: str
    status: int
    peers: list[int]


class ThreadFailed(Frame, kind="thread_failed", route=RANK_TO_DRIVER):
    """An uncaught exception has ended a thread of the rank, but not its program."""

    thread: str
    error: str


class RankExcluded(Frame, kind="excluded", route=RANK_TO_DRIVER):
    """The ranks have agreed to go on without a rank that may still run.

    It has been ``stopped`` or ``silent`` for these seconds, or its link to another rank
    is ``broken``. The driver kills it. ``generation`` is the world without it.
    """

    rank: int
    cause: str
    seconds: float
    stay: int = 0
    generation: int = 0


class RankApart(Frame, kind="apart", route=RANK_TO_DRIVER):
    """The rank trains on in a lineage of its own, because it cannot reach the others.

    ``members`` are the ranks that began the lineage together, and ``generation`` is the
    world that they have left. The driver invites them to the next generation.
    """

    lineage: str
    generation: int
    members: list[int]


class Stall(Frame, kind="stall", route=RANK_TO_DRIVER):
    """The rank has waited long in an operation, and asks what all ranks are doing."""

    op: str


class Pending(Frame, kind="pending", route=RANK_TO_DRIVER):
    """Answers ``query_pending``: the operations that the rank has outstanding."""

    id: int
    ops: list[OutstandingOperation]


class StopRequest(Frame, kind="stop_request", route=RANK_TO_DRIVER):
    """The rank has been told that it will be ended soon; ``stop_notice`` follows."""


class Result(Frame, kind="result", route=RANK_TO_DRIVER):
    """A part of the pickled result of the call of ``bfrun.run``, in base64."""

    data: str
    last: bool


class Admits(Frame, kind="admits", route=RANK_TO_DRIVER):
    """The rank can now let newcomers into the job, or can no longer do so.

    ``grows`` says whether newcomers may be ranks that the job has not had before, and
    ``has_ended`` whether the training of this rank is over.
    """

    willing: bool
    grows: bool = False
    has_ended: bool = False


class AskToJoin(Frame, kind="ask_to_join", route=RANK_TO_DRIVER):
    """A newcomer waits for an ``invite``."""


class JoinRecord(Frame, kind="join_record", route=RANK_TO_DRIVER):
    """Answers ``invite``: the rank's record for the rendezvous of a generation."""

    generation: int
    record: Any


class JoinReady(Frame, kind="join_ready", route=RANK_TO_DRIVER):
    """The rank has met the others of a generation.

    A newcomer is then ready to take over the state of another rank.
    """

    generation: int


class Joined(Frame, kind="joined", route=RANK_TO_DRIVER):
    """The rank has changed to a generation."""

    generation: int
