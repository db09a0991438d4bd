"""A rank's connection to its agent: rendezvous, news of other ranks, stall reports.

The connection outlives ``shutdown``: a later ``init`` of the same process uses it
again, because the agent admits one process per rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from bfrun.channel import MessageParser, encode
from bfrun.errors import ProtocolError
from bfrun.frames.agent_to_rank import AGENT_TO_RANK, Refused, Welcome
from bfrun.frames.driver_to_rank import DRIVER_TO_RANK, RecordList, RecordsMissing
from bfrun.frames.frame import Frame, decode
from bfrun.frames.rank_to_agent import Hello
from bfrun.frames.rank_to_driver import Publish
from bluecomm.errors import BluecommError, CommunicationTimeout

_RECEIVE_NBYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class AgentLost:
    """News that the connection to the agent has ended, and why."""

    text: str


News = Frame | AgentLost


class NewsFeed:
    """Passes news from the agent to one listener.

    News that arrives while nobody listens is kept.
    """

    def __init__(self) -> None:
        self._arrived = threading.Condition(threading.RLock())
        self._listener: Callable[[News], None] | None = None
        self._unheard: list[News] = []

    def put(self, news: News) -> None:
        """Pass news on to the listener. Runs in the connection's thread."""
        with self._arrived:
            if self._listener is not None:
                self._listener(news)
                return
            self._unheard.append(news)
            self._arrived.notify_all()

    def listen(self, listener: Callable[[News], None] | None) -> None:
        """Pass news to ``listener``, on the connection's thread.

        News that arrived while nobody listened is passed first. After this returns,
        the previous listener is never called again.
        """
        with self._arrived:
            self._listener = listener
            if listener is not None:
                unheard, self._unheard = self._unheard, []
                for news in unheard:
                    listener(news)

    def wait_for(self, wanted: Callable[[News], bool], timeout_s: float) -> News | None:
        """Take out the first item that ``wanted`` accepts, while nobody listens.

        Returns:
            The news; ``None`` if it has not arrived in time.
        """
        deadline = time.monotonic() + timeout_s
        with self._arrived:
            while True:
                for index, news in enumerate(self._unheard):
                    if wanted(news):
                        return self._unheard.pop(index)
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                self._arrived.wait(left_s)


class AgentConnection:
    """Exchanges frames with the agent; one daemon thread reads.

    Args:
        path: The agent's Unix socket.
        rank: Number of this rank.
        timeout_s: Seconds to wait for the agent's welcome.

    Attributes:
        news: The news for the first world of this process.

    Raises:
        BluecommError: The agent cannot be reached, or refuses this process.
        CommunicationTimeout: The agent did not answer in time.
    """

    def __init__(self, path: str, rank: int, timeout_s: float) -> None:
        self.pid = os.getpid()
        self._news = threading.Condition()
        self._welcomes: list[Welcome] = []  # one, once the agent has answered
        self._answers: dict[int, RecordList | RecordsMissing] = {}
        self.news = NewsFeed()
        self._feeds: tuple[NewsFeed, ...] = (self.news,)
        self._send_lock = threading.Lock()
        self._broken = ""
        self._socket = _connect(path, rank, timeout_s)
        self._thread = threading.Thread(
            target=self._read, name="bluecomm-agent-connection", daemon=True
        )
        self._thread.start()
        try:
            self.send(Hello(rank=rank, pid=self.pid))
            self._await(lambda: bool(self._welcomes), "welcome", timeout_s)
            self.welcome = self._welcomes[0]
        except BaseException:
            self.close()
            raise

    def send(self, frame: Frame) -> None:
        """Send a frame.

        Raises:
            BluecommError: The connection to the agent is lost.
        """
        try:
            with self._send_lock:
                self._socket.sendall(encode(frame.to_message()))
        except OSError as error:
            raise BluecommError(
                f"the connection to the agent of this machine is lost: {error}"
            ) from None

    def exchange(
        self, record: dict[str, Any], round_number: int, timeout_s: float
    ) -> list[dict[str, Any]]:
        """Publish this rank's record and return the records of all ranks, by rank.

        Raises:
            CommunicationTimeout: Some ranks did not publish their record in time.
        """
        self.send(Publish(round=round_number, record=record))
        self._await(lambda: round_number in self._answers, "table", timeout_s)
        answer = self._answers.pop(round_number)
        if isinstance(answer, RecordsMissing):
            raise CommunicationTimeout(
                f"init on rank {self.welcome.rank}: {answer.text}",
                operation="init",
                rank=self.welcome.rank,
                peers=answer.ranks,
                timeout_s=timeout_s,
            )
        return answer.records

    def open_feed(self) -> NewsFeed:
        """Return a further feed, which gets all news from now on."""
        feed = NewsFeed()
        with self._news:
            self._feeds = (*self._feeds, feed)
        return feed

    def close_feed(self, feed: NewsFeed) -> None:
        """Pass no more news to a feed."""
        with self._news:
            self._feeds = tuple(one for one in self._feeds if one is not feed)

    def close(self) -> None:
        """Close the connection and stop the reader's thread."""
        # The agent may have closed the connection first.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=1.0)
        self._socket.close()

    def abandon_after_fork(self) -> None:
        """Drop the descriptor in a forked child; the parent keeps the connection."""
        self._socket.close()

    def _await(
        self, is_answered: Callable[[], bool], kind: str, timeout_s: float
    ) -> None:
        """Wait until ``is_answered`` returns true.

        Raises:
            BluecommError: The agent refuses this process, or the connection broke.
            CommunicationTimeout: The answer did not arrive in time.
        """
        deadline = time.monotonic() + timeout_s
        with self._news:
            while not is_answered():
                if self._broken:
                    raise BluecommError(f"init: {self._broken}", operation="init")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise CommunicationTimeout(
                        f"init: no answer ({kind}) from the agent of this machine "
                        f"within {timeout_s:g} s",
                        operation="init",
                        timeout_s=timeout_s,
                    )
                self._news.wait(left)

    def _read(self) -> None:
        parser = MessageParser()
        ending = ""
        while not ending:
            try:
                data = self._socket.recv(_RECEIVE_NBYTES)
                for message in parser.feed(data):
                    self._dispatch(
                        decode(message, "the agent", AGENT_TO_RANK, DRIVER_TO_RANK)
                    )
                if not data:
                    ending = "the agent of this machine closed the connection"
            except (OSError, ProtocolError) as error:
                ending = f"the connection to the agent of this machine broke: {error}"
        with self._news:
            self._broken = self._broken or ending
            self._news.notify_all()
        self._hear(AgentLost(self._broken))

    def _dispatch(self, frame: Frame) -> None:
        """Store an answer for the thread that waits for it; pass on all other news."""
        with self._news:
            if isinstance(frame, Welcome):
                self._welcomes.append(frame)
            elif isinstance(frame, (RecordList, RecordsMissing)):
                self._answers[frame.round] = frame
            elif isinstance(frame, Refused):
                self._broken = f"refused by the agent of this machine: {frame.error}"
            self._news.notify_all()
        if not isinstance(frame, (Welcome, RecordList, RecordsMissing, Refused)):
            self._hear(frame)

    def _hear(self, news: News) -> None:
        for feed in self._feeds:
            feed.put(news)


def _connect(path: str, rank: int, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(path)
        connection.settimeout(None)
    except OSError as error:
        connection.close()
        raise BluecommError(
            f"init on rank {rank}: cannot reach the agent of this machine at {path}: "
            f"{error}. Was this process started by bfrun, and is bfrun still running?",
            operation="init",
            rank=rank,
        ) from None
    return connection
