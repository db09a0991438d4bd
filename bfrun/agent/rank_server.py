"""The Unix socket over which the ranks of one machine talk to their agent.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bfrun.agent.procs import read_stat
from bfrun.channel import Message, MessageParser, SendQueue, encode
from bfrun.errors import ProtocolError
from bfrun.frames.agent_to_rank import Refused, TaskHeader, TaskPart, Welcome
from bfrun.frames.frame import decode
from bfrun.frames.rank_to_agent import RANK_TO_AGENT, FetchTask, Hello

_READ_NBYTES = 256 << 10
_CREDENTIALS = struct.Struct("3i")


class RankConnection:
    """A connected process, which speaks for a rank once it has been welcomed."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.rank: int | None = None
        self.parser = MessageParser()
        self.queue = SendQueue()
        self.closing = False
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid: int = _CREDENTIALS.unpack(raw)[0]


class RankServer:
    """Accepts the ranks of this machine, and passes their messages on.

    Args:
        folder: Folder of this job on this machine, of mode 0700.
        selector: The agent's. The data of each entry is a callable that takes events.
        on_hello: Called with (rank, pid). Returns the welcome, or why it refuses.
        on_message: Called with (rank, message) for every later message, which is not
            checked: the driver does that.
        task: Parts of the call that ranks may fetch; the owner fills it.
    """

    def __init__(
        self,
        folder: str,
        selector: selectors.BaseSelector,
        on_hello: Callable[[int, int], Welcome | str],
        on_message: Callable[[int, Message], None],
        task: list[str],
    ) -> None:
        self.path = os.path.join(folder, "agent")
        self._selector = selector
        self._on_hello = on_hello
        self._on_message = on_message
        self._task = task
        self._by_rank: dict[int, RankConnection] = {}
        self._open: set[RankConnection] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(1024)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def send(self, ranks: Iterable[int], message: Mapping[str, Any]) -> None:
        """Queue a message for those of ``ranks`` that are connected."""
        data: bytes | None = None
        for rank in ranks:
            connection = self._by_rank.get(rank)
            if connection is not None:
                # Encoded once, because some messages go to a thousand ranks.
                data = encode(message) if data is None else data
                connection.queue.put_encoded(data)
                self._flush(connection)

    def drop_rank(self, rank: int) -> None:
        """Receive the last messages of a rank whose process has ended, and hang up."""
        for connection in [c for c in self._open if c.rank == rank]:
            while self._receive(connection):
                pass
            self._close(connection)

    def close(self) -> None:
        """Close every connection and the socket, and remove its path."""
        for connection in tuple(self._open):
            self._close(connection)
        self._selector.unregister(self._listener)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):  # a cleaner may have removed it
            os.unlink(self.path)

    def _accept(self, mask: int) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        connection = RankConnection(sock)
        self._open.add(connection)
        self._selector.register(
            sock, selectors.EVENT_READ, lambda mask: self._serve(connection, mask)
        )

    def _serve(self, connection: RankConnection, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush(connection)
        if mask & selectors.EVENT_READ and connection in self._open:
            self._receive(connection)

    def _receive(self, connection: RankConnection) -> bool:
        """Read once, and return whether there may be more."""
        try:
            data = connection.socket.recv(_READ_NBYTES)
            messages = connection.parser.feed(data)
        except BlockingIOError:
            return False
        except (OSError, ProtocolError):
            data, messages = b"", []
        for message in messages:
            if connection.closing:
                break
            if connection.rank is None:
                self._greet(connection, message)
            else:
                self._on_message(connection.rank, message)
        if not data:
            self._close(connection)
        return bool(data)

    def _greet(self, connection: RankConnection, message: Message) -> None:
        """Serve the first frame of a process: ``hello`` or ``fetch_task``."""
        try:
            frame = decode(message, f"process {connection.pid}", RANK_TO_AGENT)
        except ProtocolError as error:
            self._refuse(connection, str(error))
            return
        if isinstance(frame, FetchTask):
            self._give_task(connection, frame.rank)
        elif isinstance(frame, Hello):
            self._admit(connection, frame.rank)

    def _admit(self, connection: RankConnection, rank: int) -> None:
        """Let a process speak for its rank, unless another one does."""
        holder = self._by_rank.get(rank)
        if holder is not None and holder.pid != connection.pid:
            stat = read_stat(holder.pid)
            if stat is not None and stat.state not in "ZX":
                self._refuse(
                    connection, _second_claim(rank, connection.pid, holder.pid)
                )
                return
        answer = self._on_hello(rank, connection.pid)
        if isinstance(answer, str):
            self._refuse(connection, answer)
            return
        if holder is not None:
            self._close(holder)
        connection.rank = rank
        self._by_rank[rank] = connection
        connection.queue.put(answer.to_message())
        self._flush(connection)

    def _give_task(self, connection: RankConnection, rank: int) -> None:
        """Send the call to a rank, whose result comes over the same connection."""
        connection.rank = rank
        connection.queue.put(TaskHeader(parts=len(self._task)).to_message())
        for part in self._task:
            connection.queue.put(TaskPart(data=part).to_message())
        self._flush(connection)

    def _refuse(self, connection: RankConnection, text: str) -> None:
        connection.queue.put(Refused(error=text).to_message())
        connection.closing = True
        self._flush(connection)

    def _flush(self, connection: RankConnection) -> None:
        try:
            while connection.queue:
                sent = connection.socket.send(connection.queue.peek())
                connection.queue.advance(sent)
        except BlockingIOError:
            pass
        except OSError:
            self._stop_sending(connection)
            return
        if connection.closing and not connection.queue:
            self._close(connection)
            return
        self._want(connection)

    def _stop_sending(self, connection: RankConnection) -> None:
        """Send nothing more to a process that has hung up.

        Its last messages, such as a goodbye, may still be in the socket.
        """
        connection.queue = SendQueue()
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_WR)
        self._want(connection)

    def _want(self, connection: RankConnection) -> None:
        """Have the selector report messages, and room for those in the queue."""
        events = selectors.EVENT_READ
        if connection.queue:
            events |= selectors.EVENT_WRITE
        key = self._selector.get_key(connection.socket)
        if key.events != events:
            self._selector.modify(connection.socket, events, key.data)

    def _close(self, connection: RankConnection) -> None:
        if connection not in self._open:
            return
        self._open.remove(connection)
        rank = connection.rank
        if rank is not None and self._by_rank.get(rank) is connection:
            del self._by_rank[rank]
        self._selector.unregister(connection.socket)
        connection.socket.close()


def _second_claim(rank: int, pid: int, holder_pid: int) -> str:
    return (
        f"process {pid} claims rank {rank}, which process {holder_pid} already has. "
        "If it is a child of that process (multiprocessing, DataLoader), put "
        "bluecomm.init() and everything that starts processes below "
        '`if __name__ == "__main__":`, or do not call init in the child'
    )
