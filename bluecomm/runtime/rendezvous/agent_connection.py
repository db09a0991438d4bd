"""A rank's connection to its agent: rendezvous, news of other ranks, stall reports.

The connection outlives ``shutdown``: a later ``init`` of the same process uses it
again, because the agent admits one process per rank.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from bfrun.channel import Frame, FrameParser, encode
from bfrun.errors import ProtocolError
from bluecomm.errors import BluecommError, CommunicationTimeout

_RECEIVE_NBYTES = 1 << 16


class AgentConnection:
    """Stream of frames to and from the agent, read by one daemon thread.

    Args:
        path: The agent's Unix socket.
        rank: This rank, as the launcher numbered it.
        timeout_s: Seconds to wait for the agent's welcome.

    Raises:
        BluecommError: The agent cannot be reached, or refuses this process.
        CommunicationTimeout: The agent did not answer in time.
    """

    def __init__(self, path: str, rank: int, timeout_s: float) -> None:
        self.pid = os.getpid()
        self._news = threading.Condition()
        self._answers: dict[tuple[str, int], Frame] = {}
        self._listener: Callable[[Frame], None] | None = None
        self._unheard: list[Frame] = []
        self._hearing = threading.RLock()  # held while the listener runs
        self._send_lock = threading.Lock()
        self._broken = ""
        self._socket = _connect(path, rank, timeout_s)
        self._thread = threading.Thread(
            target=self._read, name="bluecomm-agent-connection", daemon=True
        )
        self._thread.start()
        try:
            self.send({"type": "hello", "rank": rank, "pid": self.pid})
            self.welcome = self._take("welcome", 0, timeout_s)
        except BaseException:
            self.close()
            raise

    def send(self, frame: Frame) -> None:
        """Send a frame.

        Raises:
            BluecommError: The agent is gone.
        """
        try:
            with self._send_lock:
                self._socket.sendall(encode(frame))
        except OSError as error:
            raise BluecommError(f"the agent of this machine is gone: {error}") from None

    def exchange(
        self, record: dict[str, Any], round_number: int, timeout_s: float
    ) -> list[dict[str, Any]]:
        """Publish this rank's record and return everyone's, by rank.

        Raises:
            CommunicationTimeout: Some ranks have not published theirs in time.
        """
        self.send({"type": "publish", "round": round_number, "record": record})
        answer = self._take("table", round_number, timeout_s)
        if answer["type"] == "missing":
            raise CommunicationTimeout(
                f"init on rank {self.welcome['rank']}: {answer['text']}",
                operation="init",
                rank=int(self.welcome["rank"]),
                peers=[int(rank) for rank in answer["ranks"]],
                timeout_s=timeout_s,
            )
        records: list[dict[str, Any]] = answer["records"]
        return records

    def listen(self, listener: Callable[[Frame], None] | None) -> None:
        """Hand unsolicited frames to ``listener``, on the reader's thread.

        News that came while nobody listened are handed over first. Once this returns,
        the listener before is not called any more.
        """
        with self._hearing:
            self._listener = listener
            if listener is not None:
                unheard, self._unheard = self._unheard, []
                for frame in unheard:
                    listener(frame)

    def close(self) -> None:
        """End the connection and the reader's thread."""
        with contextlib.suppress(OSError):  # the agent may have closed it first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=1.0)
        self._socket.close()

    def abandon_after_fork(self) -> None:
        """Drop the descriptor in a forked child; the parent keeps the connection."""
        self._socket.close()

    def _take(self, kind: str, number: int, timeout_s: float) -> Frame:
        """Wait for the answer to a question, or for the refusal of it."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            while (kind, number) not in self._answers and not self._broken:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise CommunicationTimeout(
                        f"init: no answer ({kind}) from the agent of this machine "
                        f"within {timeout_s:g} s",
                        operation="init",
                        timeout_s=timeout_s,
                    )
                self._news.wait(left)
            if (kind, number) in self._answers:
                return self._answers.pop((kind, number))
            raise BluecommError(f"init: {self._broken}", operation="init")

    def _read(self) -> None:
        parser = FrameParser()
        ending = ""
        while not ending:
            try:
                data = self._socket.recv(_RECEIVE_NBYTES)
                frames = parser.feed(data)
            except (OSError, ProtocolError) as error:
                ending = f"the connection to the agent of this machine broke: {error}"
            else:
                for frame in frames:
                    self._dispatch(frame)
                if not data:
                    ending = "the agent of this machine closed the connection"
        with self._news:
            self._broken = self._broken or ending
            self._news.notify_all()
        self._hear({"type": "agent_lost", "text": self._broken})

    def _dispatch(self, frame: Frame) -> None:
        kind = frame["type"]
        if kind in ("welcome", "table", "missing"):
            question = "welcome" if kind == "welcome" else "table"
            with self._news:
                self._answers[question, int(frame.get("round", 0))] = frame
                self._news.notify_all()
        elif kind == "refused":
            with self._news:
                self._broken = f"refused by the agent of this machine: {frame['error']}"
                self._news.notify_all()
        else:
            self._hear(frame)

    def _hear(self, frame: Frame) -> None:
        with self._hearing:
            if self._listener is None:
                self._unheard.append(frame)
            else:
                self._listener(frame)


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
