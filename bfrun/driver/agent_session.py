"""The driver's side of one agent: its connection, its frames, its heartbeats."""

from __future__ import annotations

import time

from bfrun.channel import MessageParser, SendQueue
from bfrun.errors import LaunchError, ProtocolError
from bfrun.frames.agent_to_driver import (
    AGENT_TO_DRIVER,
    AgentEnded,
    Attached,
    Past,
    Ready,
)
from bfrun.frames.driver_to_agent import Attach, Beat
from bfrun.frames.frame import Frame, decode
from bfrun.hosts import Host
from bfrun.launch.archive import source_archive
from bfrun.launch.base import Launcher, NoConnection, ProcessConnection
from bfrun.launch.bootstrap import AGENT_FILES, MarkerFilter, agent_argv, new_marker
from bfrun.launch.relay import ReachedAgent
from bfrun.silence import MARGIN_S, SilenceTimer

BEAT_EVERY_S = 1.0
_READ_NBYTES = 256 << 10
_END_S = 5.0


class AgentSession:
    """One started agent. Owns the connection to it.

    Attributes:
        host: The agent's host.
        ready: The agent's first frame, or None before it has arrived.
        ended: Whether the agent has sent its last frame.
        lost: Why the agent is lost, or "".
        silent: Whether it is lost because it was silent for too long.
        past: Reports from before this driver attached, in their order.
        started: When the agent was started, on the clock ``time.monotonic``. None
            before all of ``past`` has arrived, and for a driver that has started it.
    """

    def __init__(
        self,
        host: Host,
        connection: ProcessConnection,
        marker: bytes,
        archive: bytes,
        link_timeout_s: float,
    ):
        self.host = host
        self.connection = connection
        self.ready: Ready | None = None
        self.ended = False
        self.lost = ""
        self.silent = False
        self.past: list[Past] = []
        self.started: float | None = None
        self._is_parent = True  # only a parent learns the exit status
        self._is_asking = False
        self._archive = memoryview(archive)
        self._filter = MarkerFilter(marker)
        self._parser = MessageParser()
        self._queue = SendQueue()
        self._silence = SilenceTimer(link_timeout_s + MARGIN_S)
        self._beat_due = 0.0

    @classmethod
    def start(
        cls,
        launcher: Launcher,
        host: Host,
        pythons: list[str],
        timeout_s: float,
        link_timeout_s: float,
    ) -> AgentSession:
        """Start an agent on ``host``, without waiting for its ``ready`` frame.

        Args:
            launcher: Starts programs on the host.
            host: The host.
            pythons: Interpreters to try, in order.
            timeout_s: Seconds to connect.
            link_timeout_s: Seconds that the network may carry nothing.
        """
        marker, archive = new_marker(), source_archive(AGENT_FILES)
        argv = agent_argv(pythons, marker, len(archive))
        connection = launcher.start(host, argv, timeout_s)
        return cls(host, connection, marker, archive, link_timeout_s)

    @classmethod
    def attach(
        cls,
        host: Host,
        connection: ProcessConnection,
        key: str,
        link_timeout_s: float,
        *,
        marker: bytes = b"",
        archive: bytes = b"",
    ) -> AgentSession:
        """Take over a running agent, without waiting for its ``attached`` frame.

        Args:
            host: The host.
            connection: Connection to the agent, owned by the session from now on.
            key: Key of the job, which proves that this driver may take over.
            link_timeout_s: Seconds that the network may carry nothing.
            marker: Bytes that come before the agent's first frame.
            archive: Bytes to send before the first frame.
        """
        session = cls(host, connection, marker, archive, link_timeout_s)
        session._ask(key)
        return session

    @classmethod
    def unreached(cls, host: Host, reason: str, link_timeout_s: float) -> AgentSession:
        """Return the lost session of an agent that could not be reached.

        Args:
            host: The host.
            reason: Why it could not be reached.
            link_timeout_s: Seconds that the network may carry nothing.
        """
        session = cls(host, NoConnection(), b"", b"", link_timeout_s)
        session._is_parent = False
        session._lose(reason)
        return session

    def renew(self, reached: ReachedAgent, key: str) -> None:
        """Take the agent over again after the session was lost.

        Args:
            reached: Another connection to the agent, owned by the session from now on.
            key: Key of the job.
        """
        self.connection.leave()
        self.connection = reached.connection
        self._archive = memoryview(reached.archive)
        self._filter = MarkerFilter(reached.marker)
        self._parser = MessageParser()
        self._queue = SendQueue()
        self._silence.heard()
        self.lost, self.silent = "", False
        self.past, self.started = [], None
        self._ask(key)

    def _ask(self, key: str) -> None:
        """Ask the agent to take this driver, and send nothing else until it has."""
        self._is_parent = False
        self._queue.put(Attach(key=key).to_message())
        self._is_asking = True

    @property
    def is_reached(self) -> bool:
        """Whether the agent gets the frames that are sent now."""
        return not self.lost and not self._is_asking

    @property
    def has_surely_ended(self) -> bool:
        """Whether the agent is lost, and its guard has ended after all its processes.

        A connection that has ended does not prove it, nor does a guard that was killed.
        """
        if not self.lost:
            return False
        status = self.connection.wait(0.0)
        return status is not None and status >= 0

    @property
    def has_backlog(self) -> bool:
        """Whether frames wait to be sent."""
        return bool(self._archive or self._queue)

    @property
    def has_unsent(self) -> bool:
        """Whether frames have not left this process."""
        return self.has_backlog or self.connection.has_unsent

    def send(self, frame: Frame) -> None:
        """Queue a frame, unless the agent is lost or has not taken this driver yet."""
        if self.is_reached:
            self._queue.put(frame.to_message())

    def flush(self) -> None:
        """Send what the connection takes now, and a heartbeat if one is due."""
        if self.lost or self.ended:
            return
        now = time.monotonic()
        if now >= self._beat_due and not self.has_backlog and not self._is_asking:
            self._beat_due = now + BEAT_EVERY_S
            self._queue.put(Beat().to_message())
        try:
            while self._archive:
                sent = self.connection.send(self._archive)
                self._archive = self._archive[sent:]
                if not sent:
                    return
            while self._queue:
                sent = self.connection.send(self._queue.peek())
                self._queue.advance(sent)
                if not sent:
                    return
        except ConnectionError as error:
            self._lose(str(error))

    def receive(self) -> list[Frame]:
        """Return the frames that have arrived and do not concern the session itself."""
        if self.lost:
            return []
        data = self.connection.receive(_READ_NBYTES)
        if data is None:
            return []
        if not data:
            self._lose("its connection ended")
            return []
        self._silence.heard()
        frames = []
        try:
            for message in self._parser.feed(self._filter.feed(data)):
                frame = decode(message, "it", AGENT_TO_DRIVER)
                if not self._take(frame):
                    frames.append(frame)
        except ProtocolError as error:
            self._lose(f"{error}")
        return frames

    def _take(self, frame: Frame) -> bool:
        """Apply a frame to the session; return whether nobody else needs the frame."""
        if isinstance(frame, Ready):
            self.ready = frame
        elif isinstance(frame, AgentEnded):
            self.ended = True
            return False
        elif isinstance(frame, Past):
            self.past.append(frame)
        elif isinstance(frame, Attached):
            self.started = time.monotonic() - frame.age_s
            self._is_asking = False
        return isinstance(frame, (Beat, Ready, Past, Attached))

    def check(self) -> None:
        """Treat the agent as lost if it has been silent for too long."""
        if self.ready and not self.lost and not self.ended and self._silence.expired():
            self.silent = True
            self._lose(f"it was silent for {self._silence.limit_s:g} s")

    def give_up(self, reason: str) -> None:
        """Treat the agent as lost."""
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        self.lost = reason

    def why_lost(self) -> str:
        """Return why the agent is lost, with the last lines of its error output."""
        status = self.connection.wait(0.0) if self._is_parent else None
        parts = [self.lost]
        if status is not None:
            parts.append(f"exit status {status}")
        said = self.connection.diagnosis()
        if said:
            parts.append(f"it said: {said}")
        return "; ".join(parts)

    def start_error(self, timeout_s: float) -> LaunchError:
        """Return why the agent did not start."""
        reason = self.lost or f"no answer within {timeout_s:g} s"
        # If the agent has hung up, wait for its end, because its errors are complete
        # only then.
        status = self.connection.wait(_END_S if self.lost else 0.5)
        lines = [f"host '{self.host.name}': the agent did not start: {reason}"]
        if status is not None:
            lines.append(f"exit status {status}")
        for said in (self.connection.diagnosis(), self._filter.banner):
            if said:
                lines.append(said[-2000:])
        lines.append(
            "the host needs Python 3.8 or newer; name the interpreter with --python"
        )
        if not self.lost:
            lines.append("if the host is slow, raise --start-timeout")
        return LaunchError("; ".join(lines))

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
