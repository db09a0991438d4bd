"""Frames from an agent to the driver.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

from typing import Any, Literal

from bfrun.frames.driver_to_agent import Beat
from bfrun.frames.frame import Frame, Route
from bfrun.frames.parts import ProcessState
from bfrun.frames.rank_to_agent import Hello
from bfrun.structure import Structure

AGENT_TO_DRIVER = Route("agent", "driver", Beat, Hello)


class HostLimit(Structure):
    """A limit of a host on the number of ranks.

    Attributes:
        name: Name of the limit, and how to look at it.
        what: The limited resource.
        limit: Its value.
        used: How much of it is in use without any rank.
        per_rank: How much of it one rank needs at least.
    """

    name: str
    what: str
    limit: int
    used: int
    per_rank: int


class Ready(Frame, kind="ready", route=AGENT_TO_DRIVER):
    """First frame of an agent. ``free_port`` is for the users' MASTER_PORT.

    ``folder`` has the agent's sockets. ``machine_id`` names its running kernel.
    """

    agent_pid: int
    guard_pid: int
    folder: str
    hostname: str
    python: str
    executable: str
    free_port: int
    limits: list[HostLimit]
    machine_id: str = ""


class RankStarted(Frame, kind="started", route=AGENT_TO_DRIVER):
    """The command of a rank runs as this process."""

    rank: int
    pid: int


class RankNotStarted(Frame, kind="start_failed", route=AGENT_TO_DRIVER):
    """The command of a rank could not be started."""

    rank: int
    error: str


class FromRank(Frame, kind="rank", route=AGENT_TO_DRIVER):
    """Passes on a frame that a rank has sent to the driver."""

    rank: int
    frame: dict[str, Any]


class FromRankRefused(Frame, kind="rank_refused", route=AGENT_TO_DRIVER):
    """A rank has sent a frame that is too large to be passed on."""

    rank: int
    frame_kind: str
    error: str


class RankStopped(Frame, kind="freeze", route=AGENT_TO_DRIVER):
    """A rank's process has been stopped (state T) for too long, or runs again."""

    event: Literal["frozen", "failed", "thawed"]
    rank: int
    pid: int
    seconds: float


class RankVanished(Frame, kind="vanished", route=AGENT_TO_DRIVER):
    """The process that spoke for a rank ended, but the rank's command still runs."""

    rank: int
    pid: int


class RankExited(Frame, kind="exited", route=AGENT_TO_DRIVER):
    """The command of a rank has ended.

    ``status`` is its exit code, or minus the number of a signal. ``oom`` is evidence of
    the out-of-memory killer.
    """

    rank: int
    pid: int
    status: int
    oom: str | None = None


class Inspection(Frame, kind="inspection", route=AGENT_TO_DRIVER):
    """Answers ``inspect``: the state of each process, by rank."""

    id: int
    ranks: dict[str, ProcessState]


class ClockReading(Frame, kind="clock", route=AGENT_TO_DRIVER):
    """Answers ``clock`` at once, with the times of arrival and of the answer."""

    sent_ns: int
    received_ns: int
    replied_ns: int


class Output(Frame, kind="output", route=AGENT_TO_DRIVER):
    """A piece of a rank's output. Other frames may overtake it."""

    rank: int
    stream: Literal["stdout", "stderr"]
    data: str
    nbytes: int


class OutputClosed(Frame, kind="closed", route=AGENT_TO_DRIVER):
    """A rank has ended, and all of its output has been sent."""

    rank: int


class StdinTaken(Frame, kind="stdin_taken", route=AGENT_TO_DRIVER):
    """Rank 0 has read this much of its standard input, so more may follow."""

    nbytes: int


class TracePiece(Frame, kind="trace", route=AGENT_TO_DRIVER):
    """At most 512 KiB of the trace of an ended rank, deflated, in base64.

    Sent while the connection is idle.
    """

    rank: int
    file: str
    data: str


class AgentEnded(Frame, kind="ended", route=AGENT_TO_DRIVER):
    """Last frame of an agent. ``left`` is the number of processes that still run."""

    left: int


class Past(Frame, kind="past", route=AGENT_TO_DRIVER):
    """A report from before this driver attached, in the order of the reports.

    ``at_s`` counts from the agent's first ``start``.
    """

    at_s: float
    frame: dict[str, Any]


class Attached(Frame, kind="attached", route=AGENT_TO_DRIVER):
    """Ends the ``past`` frames, ``age_s`` after the agent's first ``start``."""

    age_s: float


class OutputLost(Frame, kind="output_lost", route=AGENT_TO_DRIVER):
    """The agent dropped this much of a rank's output while it had no driver."""

    rank: int
    nbytes: int
