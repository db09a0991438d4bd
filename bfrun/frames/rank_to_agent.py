"""Frames from a rank to its agent.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

from bfrun.frames.frame import Frame, Route

RANK_TO_AGENT = Route("rank", "agent")


class Hello(Frame, kind="hello", route=RANK_TO_AGENT):
    """This process speaks for the rank. The agent passes it on to the driver."""

    rank: int
    pid: int


class FetchTask(Frame, kind="fetch_task", route=RANK_TO_AGENT):
    """Asks for the call of ``bfrun.run``. Sent instead of ``hello``."""

    rank: int
