"""Starts the agents of a plan in parallel, and waits until each is ready."""

from __future__ import annotations

import math
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence

from bfrun.config import LaunchConfig
from bfrun.driver.agent_session import AgentSession
from bfrun.driver.signals import SignalWatch
from bfrun.driver.suspend import suspend
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.base import Launcher
from bfrun.output.streams import remark

# After the first error, other hosts may report theirs for this long.
_MORE_ERRORS_S = 5.0
# After this long, the user is told which hosts have not answered.
_TELL_AFTER_S = 10.0
_LOOK_S = 0.1
_BACKLOG_LOOK_S = 0.005


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

    Each host may take up to ``--start-timeout``. Agents that are ready get heartbeats
    until the others are.

    Returns:
        The sessions in the order of the hosts, all ready.

    Raises:
        LaunchError: Some agents did not start. The text names each.
        Interrupted: The user interrupted the start.

    After an error, all sessions are closed.
    """
    limit_s = config.start_timeout_s
    starts = [AgentStart(host, launcher, config, signals.wake) for host in hosts]
    try:
        for start in starts:
            start.thread.start()
        errors = _await_ready(starts, limit_s, signals)
        if errors:
            raise LaunchError("\n".join(errors))
    except BaseException:
        for start in starts:
            start.abandon()
        raise
    for start in starts:
        start.thread.join()
    return [start.session for start in starts if start.session is not None]


class AgentStart:
    """The start of one agent, in its own thread because connecting blocks.

    Args:
        host: Its host.
        launcher: Starts it. The caller owns the launcher.
        config: Time limits, and the interpreter.
        wake: Called in the thread when it has ended, unless the start is abandoned.

    Attributes:
        host: Its host.
        thread: The thread. The caller starts it.
        session: The session, once it is connected.
        error: Why the connection failed, or None.
    """

    def __init__(
        self,
        host: Host,
        launcher: Launcher,
        config: LaunchConfig,
        wake: Callable[[], None],
    ) -> None:
        self.host = host
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.session: AgentSession | None = None
        self.error: Exception | None = None
        self._limit_s = config.start_timeout_s
        pythons = _pythons(config.python)
        limits_s = (self._limit_s, config.link_timeout_s)
        self._arguments = (launcher, host, pythons, *limits_s)
        self._wake = wake
        self._lock = threading.Lock()
        self._abandoned = False

    def _work(self) -> None:
        try:
            session = AgentSession.start(*self._arguments)
        except Exception as error:
            self.error = error
            session = None
        with self._lock:
            self.session = session
            if not self._abandoned:
                self._wake()
            elif session is not None:
                session.close()

    @property
    def ready(self) -> bool:
        """Whether the agent has started, and still lives."""
        session = self.session
        return session is not None and session.ready is not None and not session.lost

    @property
    def failed(self) -> bool:
        """Whether the agent has failed to start."""
        return self.error is not None or bool(self.session and self.session.lost)

    def step(self) -> None:
        """Send and receive what is possible now, so that the agent stays alive."""
        if self.session is not None:
            self.session.flush()
            self.session.receive()
            self.session.check()

    def text(self) -> str:
        """Return why the agent has not started."""
        if self.error is not None:
            return str(self.error)
        if self.session is not None:
            return str(self.session.start_error(self._limit_s))
        return (
            f"host '{self.host.name}': no connection within {self._limit_s:g} s; raise "
            "--start-timeout if the host is slow"
        )

    def abandon(self) -> None:
        """Close the session, now or as soon as it exists."""
        with self._lock:
            self._abandoned = True
            if self.session is not None:
                self.session.close()


def _pythons(chosen: str | None) -> list[str]:
    return [chosen] if chosen else [sys.executable, "python3"]


def _await_ready(
    starts: Sequence[AgentStart], limit_s: float, signals: SignalWatch
) -> list[str]:
    """Wait until every agent is ready, and return the errors of those that are not."""
    started = time.monotonic()
    deadline, tell_at = started + limit_s, started + _TELL_AFTER_S
    while True:
        for start in starts:
            start.step()
        waiting = [start for start in starts if not start.ready and not start.failed]
        failed = [start for start in starts if start.failed]
        now = time.monotonic()
        if failed:
            deadline = min(deadline, now + _MORE_ERRORS_S)
        if not waiting or now > deadline:
            # The other hosts had no time to answer, so they are not to blame.
            return [start.text() for start in failed or waiting]
        if now > tell_at:
            tell_at = math.inf
            names = ", ".join(start.host.name for start in waiting)
            remark(f"bfrun: waiting for {names} (--start-timeout: {limit_s:g} s)")
        _await_news(starts, signals)
        _check(starts, signals)


def _await_news(starts: Sequence[AgentStart], signals: SignalWatch) -> None:
    """Wait a moment, or until an agent, a thread or the user has something to say."""
    sessions = [start.session for start in starts if start.session is not None]
    sessions = [session for session in sessions if not session.lost]
    poll = select.poll()
    poll.register(signals.fd, select.POLLIN)
    for session in sessions:
        poll.register(session.connection, select.POLLIN)
    busy = any(session.has_backlog for session in sessions)
    poll.poll((_BACKLOG_LOOK_S if busy else _LOOK_S) * 1000)


def _check(starts: Sequence[AgentStart], signals: SignalWatch) -> None:
    for number in signals.take():
        if number != signals.SUSPEND:
            raise Interrupted(number)
        suspend([start.session for start in starts if start.session is not None])
