"""Starts the agents of a plan in parallel, and waits until each is ready."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence

from bfrun.config import LaunchConfig
from bfrun.driver.agent_session import AgentSession
from bfrun.driver.signals import SignalWatch
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.base import Launcher

AGENT_START_LIMIT_S = 30.0
_LOOK_S = 0.002


class Interrupted(Exception):
    """The user interrupted the start of the job.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def start_agents(
    hosts: Sequence[Host],
    launcher: Launcher,
    config: LaunchConfig,
    signals: SignalWatch,
) -> list[AgentSession]:
    """Start an agent on every host.

    Returns:
        The sessions in the order of the hosts, all ready.

    Raises:
        LaunchError: Some agents did not start. The text names each.
        Interrupted: The user interrupted the start.

    After an error, all sessions are closed.
    """
    limit_s = min(AGENT_START_LIMIT_S, config.start_timeout_s)
    starts = [_Start(host, launcher, config.python, limit_s) for host in hosts]
    try:
        for start in starts:
            start.thread.start()
        while any(start.thread.is_alive() for start in starts):
            _check(signals)
            time.sleep(_LOOK_S)
        errors = [str(start.error) for start in starts if start.error is not None]
        if not errors:
            errors = _await_ready([start.take() for start in starts], limit_s, signals)
        if errors:
            raise LaunchError("\n".join(errors))
    except BaseException:
        for start in starts:
            start.abandon()
        raise
    return [start.take() for start in starts]


class _Start:
    """Starts one agent, in its own thread because connecting blocks."""

    def __init__(
        self, host: Host, launcher: Launcher, python: str | None, limit_s: float
    ) -> None:
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.error: Exception | None = None
        self._arguments = (launcher, host, _pythons(python), limit_s)
        self._lock = threading.Lock()
        self._abandoned = False
        self._session: AgentSession | None = None

    def _work(self) -> None:
        try:
            session = AgentSession.start(*self._arguments)
        except Exception as error:
            self.error = error
            return
        with self._lock:
            self._session = session
            if self._abandoned:
                session.close()

    def take(self) -> AgentSession:
        """Return the session of a start that succeeded."""
        assert self._session is not None
        return self._session

    def abandon(self) -> None:
        """Close the session, now or as soon as it exists."""
        with self._lock:
            self._abandoned = True
            if self._session is not None:
                self._session.close()


def _pythons(chosen: str | None) -> list[str]:
    return [chosen] if chosen else [sys.executable, "python3"]


def _await_ready(
    sessions: list[AgentSession], limit_s: float, signals: SignalWatch
) -> list[str]:
    """Wait until every agent is ready, and return the errors of those that are not."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        waiting = [s for s in sessions if s.ready is None and not s.lost]
        if not waiting:
            break
        for session in waiting:
            session.flush()
            session.receive()
        _check(signals)
        time.sleep(_LOOK_S)
    return [str(s.start_error(limit_s)) for s in sessions if s.ready is None]


def _check(signals: SignalWatch) -> None:
    for number in signals.take():
        if number != signals.SUSPEND:
            raise Interrupted(number)
