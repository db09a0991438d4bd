"""Frames from the driver to an agent.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

from typing import Any

from bfrun.frames.agent_to_rank import TaskPart, Welcome
from bfrun.frames.frame import Frame, Route
from bfrun.structure import Structure

DRIVER_TO_AGENT = Route("driver", "agent", TaskPart)


class Beat(Frame, kind="beat", route=DRIVER_TO_AGENT):
    """Heartbeat, sent every second. ``--link-timeout`` limits the silence."""


class RankCommand(Structure):
    """The command of one rank, which an agent starts."""

    rank: int
    argv: list[str]
    cwd: str
    env: dict[str, str]
    cpus: list[int]
    stdin: bool
    welcome: Welcome


class Start(Frame, kind="start", route=DRIVER_TO_AGENT):
    """Starts ranks of one host; a host with many ranks gets several such frames.

    The agent removes variables whose names begin with one of ``foreign_prefixes``. If
    ``detached_limit_s`` is not 0, the agent outlives its driver for this long, once the
    ranks have met, and a driver that knows ``attach_key`` may take over. If
    ``outlives_silence``, a driver that is silent for too long has ended, too.
    """

    job: str
    failure_timeout_s: float
    link_timeout_s: float
    foreign_prefixes: list[str]
    processes: list[RankCommand]
    detached_limit_s: float = 0.0
    attach_key: str = ""
    outlives_silence: bool = False


class ToRanks(Frame, kind="to_rank", route=DRIVER_TO_AGENT):
    """Passes a frame on to some ranks of a host, or to all if ``ranks`` is null."""

    frame: dict[str, Any]
    ranks: list[int] | None = None


class OutputShown(Frame, kind="ack", route=DRIVER_TO_AGENT):
    """The driver has shown this much of a rank's output, so it may print more."""

    rank: int
    nbytes: int


class StdinData(Frame, kind="stdin", route=DRIVER_TO_AGENT):
    """Standard input for rank 0. ``end`` closes it afterwards."""

    data: str
    end: bool = False


class SignalRanks(Frame, kind="signal", route=DRIVER_TO_AGENT):
    """Signals all processes of some ranks of a host, or of all if ``ranks`` is null."""

    signum: int
    ranks: list[int] | None = None


class Inspect(Frame, kind="inspect", route=DRIVER_TO_AGENT):
    """Asks for the state of the ranks' processes; ``inspection`` answers it."""

    id: int


class ReadClock(Frame, kind="clock", route=DRIVER_TO_AGENT):
    """Asks for the time on the agent's clock.

    Sent for timelines of several hosts: 5 times a second for 4 s, then every 2 s.
    """

    sent_ns: int


class Suspend(Frame, kind="suspend", route=DRIVER_TO_AGENT):
    """The driver is about to stop (Ctrl-Z), so it will be silent but is not lost."""


class Resume(Frame, kind="resume", route=DRIVER_TO_AGENT):
    """The driver runs again after ``suspend``."""


class EndRanks(Frame, kind="end", route=DRIVER_TO_AGENT):
    """Kills the rest of the ranks. ``ended`` follows after the last output."""


class DropOutput(Frame, kind="leave_output", route=DRIVER_TO_AGENT):
    """Tells the agent to drop the rest of the output, which nobody reads."""


class Attach(Frame, kind="attach", route=DRIVER_TO_AGENT):
    """First frame of a driver that takes over a running job."""

    key: str
