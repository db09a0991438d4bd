"""The launcher's side of the control plane for the ranks of a test, in one thread."""

from __future__ import annotations

import contextlib
import secrets
import selectors
import shutil
import socket
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bfrun.channel import MessageParser, encode
from bfrun.frames.agent_to_rank import Welcome
from bfrun.frames.driver_to_rank import QueryPending, RecordList, StallTable
from bfrun.frames.frame import Frame, decode
from bfrun.frames.parts import OutstandingOperation, RankSnapshot
from bfrun.frames.rank_to_agent import RANK_TO_AGENT, Hello
from bfrun.frames.rank_to_driver import RANK_TO_DRIVER, Pending, Publish, Stall
from tests.support.deadlines import DEADLINE_S


class ControlServer:
    """Plays agent and driver for the ranks of one world.

    Args:
        world_size: Number of ranks.
        machines: Machine of each rank; ranks on different machines use TCP.
        survives_losses: Whether ranks go on without lost ones.
    """

    def __init__(
        self, world_size: int, machines: Sequence[str], *, survives_losses: bool = False
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="bluecomm-test-"))
        self.path = str(self.directory / "agent")
        self.news: list[Frame] = []
        self._world_size = world_size
        self._machines = machines
        self._survives_losses = survives_losses
        self._job = secrets.token_hex(8)
        self._secret = secrets.token_hex(32)
        self._records: dict[int, dict[int, Any]] = {}
        self._connections: dict[int, socket.socket] = {}
        self._parsers: dict[socket.socket, MessageParser] = {}
        self._pending: dict[int, list[OutstandingOperation]] = {}
        self._stall: Stall | None = None
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._waker, self._wakee = socket.socketpair()
        self._selector.register(self._wakee, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variables that tell ``init`` where this server is."""
        return {
            "BLUECOMM_AGENT_SOCKET": self.path,
            "BLUECOMM_RANK": str(rank),
            "BLUECOMM_SIZE": str(self._world_size),
        }

    def broadcast(self, frame: Frame) -> None:
        """Send a frame to every rank that is still connected."""
        for connection in list(self._connections.values()):
            self._send(connection, frame)

    def close(self) -> None:
        """Stop serving and remove the folder."""
        self._waker.send(b"x")
        self._thread.join(timeout=DEADLINE_S)
        for peer in (*self._parsers, self._listener, self._waker, self._wakee):
            peer.close()
        self._selector.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wakee:
                    return
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._parsers[connection] = MessageParser()
                    self._selector.register(connection, selectors.EVENT_READ)
                else:
                    self._read(key.fileobj)

    def _read(self, connection: Any) -> None:
        try:
            data = connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            return
        for message in self._parsers[connection].feed(data):
            frame = decode(message, "a rank", RANK_TO_AGENT, RANK_TO_DRIVER)
            self._answer(connection, frame)

    def _answer(self, connection: socket.socket, frame: Frame) -> None:
        if isinstance(frame, Hello):
            self._connections[frame.rank] = connection
            self._send(connection, self._welcome(frame.rank))
        elif isinstance(frame, Publish):
            rank = next(r for r, c in self._connections.items() if c is connection)
            records = self._records.setdefault(frame.round, {})
            records[rank] = frame.record
            if len(records) == self._world_size:
                table = [records[rank] for rank in range(self._world_size)]
                self.broadcast(RecordList(round=frame.round, records=table))
        elif isinstance(frame, Stall):
            self._stall = frame
            self._pending.clear()
            self.broadcast(QueryPending(id=1))
        elif isinstance(frame, Pending):
            rank = next(r for r, c in self._connections.items() if c is connection)
            self._pending[rank] = frame.ops
            if len(self._pending) == self._world_size and self._stall:
                self.broadcast(self._report(self._stall))
        else:
            self.news.append(frame)

    @staticmethod
    def _send(connection: socket.socket, frame: Frame) -> None:
        # A rank may end between its last frame and this one; the reading side notices.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(encode(frame.to_message()))

    def _welcome(self, rank: int) -> Welcome:
        machine = self._machines[rank]
        peers = [r for r in range(self._world_size) if self._machines[r] == machine]
        machines = list(dict.fromkeys(self._machines))
        return Welcome(
            job=self._job,
            epoch=0,
            secret=self._secret,
            rank=rank,
            size=self._world_size,
            local_rank=peers.index(rank),
            local_size=len(peers),
            machine_rank=machines.index(machine),
            machine_size=len(machines),
            host=f"host{machine}",
            machine=f"{self._job}-{machine}",
            socket_dir=str(self.directory),
            addresses=["127.0.0.1"],
            failure_timeout_s=120.0,
            start_timeout_s=DEADLINE_S,
            survives_losses=self._survives_losses,
        )

    def _report(self, stall: Stall) -> StallTable:
        ranks = {
            str(rank): RankSnapshot(
                host=f"host{self._machines[rank]}",
                pid=0,
                state="running",
                cpu_s=0.0,
                idle_s=0.0,
                ops=operations,
            )
            for rank, operations in self._pending.items()
        }
        return StallTable(op=stall.op, ranks=ranks)
