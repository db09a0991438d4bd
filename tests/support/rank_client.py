"""The rank's side of the control plane, for test programs without bluecomm."""

from __future__ import annotations

import os
import socket
from typing import Any

from bfrun.channel import Message, MessageParser, encode


class RankClient:
    """A connection to the agent, after the handshake."""

    def __init__(self, rank: int | None = None) -> None:
        self.rank = int(os.environ["BLUECOMM_RANK"]) if rank is None else rank
        self._frames: list[Message] = []
        self._parser = MessageParser()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(240)
        self._socket.connect(os.environ["BLUECOMM_AGENT_SOCKET"])
        self.send("hello", rank=self.rank, pid=os.getpid())
        self.welcome = self.receive("welcome", "refused")

    def send(self, kind: str, /, **fields: Any) -> None:
        """Send one frame, valid or not."""
        self._socket.sendall(encode({"type": kind, **fields}))

    def receive(self, *kinds: str) -> Message:
        """Return the next frame of one of ``kinds``; keep others for later calls."""
        while True:
            for frame in self._frames:
                if frame["type"] in kinds:
                    self._frames.remove(frame)
                    return frame
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the agent hung up")
            self._frames += self._parser.feed(data)

    def publish(self, record: Any, number: int = 0) -> Message:
        """Publish a record; return the table, or the missing ranks."""
        self.send("publish", round=number, record=record)
        return self.receive("table", "missing")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
