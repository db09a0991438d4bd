"""Parts of frames of several routes.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

from bfrun.structure import Structure


class OutstandingOperation(Structure):
    """An operation that a rank has started and not finished.

    ``group`` is the same number on all ranks that take part, and another one for
    operations of other ranks.
    """

    name: str
    kind: str
    group: int
    age_s: float
    waiting_for: list[int]
    wish: str
    blocking: bool


class ProcessState(Structure):
    """The state of a rank's process, as its agent sees it."""

    pid: int
    state: str
    cpu_s: float
    idle_s: float


class RankSnapshot(Structure):
    """The state of a rank and its operations, as its agent and the rank report them."""

    host: str
    pid: int
    state: str
    cpu_s: float
    idle_s: float
    ops: list[OutstandingOperation]
