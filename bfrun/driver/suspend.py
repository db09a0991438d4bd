"""Stops the driver as Ctrl-Z does, while the ranks keep running."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bfrun.driver.agent_session import AgentSession
from bfrun.driver.signals import stop_myself
from bfrun.frames.driver_to_agent import Resume, Suspend

# Seconds in which the frames leave this process, unless the network is cut.
_FLUSH_S = 2.0
_LOOK_S = 0.01


def suspend(sessions: Sequence[AgentSession]) -> None:
    """Tell the agents that this process is not lost, then stop it.

    Returns after the process is resumed.
    """
    for session in sessions:
        session.send(Suspend())
    send_rest(sessions)
    stop_myself()
    for session in sessions:
        session.send(Resume())


def send_rest(sessions: Sequence[AgentSession]) -> None:
    """Send the queued frames, as far as the agents take them within two seconds."""
    deadline = time.monotonic() + _FLUSH_S
    while time.monotonic() < deadline and any(
        session.has_unsent and not session.lost for session in sessions
    ):
        for session in sessions:
            session.flush()
        time.sleep(_LOOK_S)
