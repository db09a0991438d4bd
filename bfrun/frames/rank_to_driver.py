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


class Stall(Frame, kind="stall", route=RANK_TO_DRIVER):
    """The rank has waited long in an operation, and asks what all ranks are doing."""

    op: str


class Pending(Frame, kind="pending", route=RANK_TO_DRIVER):
    """Answers ``query_pending``: the operations that the rank has outstanding."""

    id: int
    ops: list[OutstandingOperation]


class Result(Frame, kind="result", route=RANK_TO_DRIVER):
    """A part of the pickled result of the call of ``bfrun.run``, in base64."""

    data: str
    last: bool
