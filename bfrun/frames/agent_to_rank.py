"""Frames from an agent to a rank.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

from bfrun.frames.frame import Frame, Route

AGENT_TO_RANK = Route("agent", "rank")


class Welcome(Frame, kind="welcome", route=AGENT_TO_RANK):
    """Answers ``hello``. The agent adds ``socket_dir`` and ``machine``.

    ``stay`` counts the processes of the rank; 0 is the one with which the job began.
    If it is not 0, this process joins the running job.
    """

    job: str
    epoch: int
    secret: str
    host: str
    addresses: list[str]
    rank: int
    size: int
    local_rank: int
    local_size: int
    machine_rank: int
    machine_size: int
    start_timeout_s: float
    failure_timeout_s: float
    trace: bool = False
    survives_losses: bool = False
    respawns: bool = False
    splits: bool = False
    grows: bool = False
    stay: int = 0
    socket_dir: str = ""
    machine: str = ""


class Refused(Frame, kind="refused", route=AGENT_TO_RANK):
    """Answers ``hello`` if the process may not speak for the rank; then hangs up."""

    error: str


class TaskHeader(Frame, kind="task", route=AGENT_TO_RANK):
    """Answers ``fetch_task``: the call follows in this many ``task_part`` frames."""

    parts: int


class TaskPart(Frame, kind="task_part", route=AGENT_TO_RANK):
    """A part of the pickled call of ``bfrun.run``, in base64."""

    data: str
