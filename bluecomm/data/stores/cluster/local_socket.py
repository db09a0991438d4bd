"""The socket between a cache server and the processes of its rank.

A packet is a message. A value lies in memory without a name, whose descriptor travels
with the packet. The socket has no file: its name is random, and both sides look at the
user of the other one.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

from bluecomm.data.stores.cluster.messages import MESSAGE_NBYTES, CacheMessage, unpack

_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 128


def listen() -> tuple[socket.socket, str]:
    """Return a new socket that processes of this machine can reach, and its address."""
    address = f"\0bluecomm-cache-{secrets.token_hex(16)}"
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        made.bind(address)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made, address


def is_own_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end has the user of this one."""
    data = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
    return bool(_CREDENTIALS.unpack(data)[1] == os.geteuid())


def new_memory(nbytes: int) -> tuple[int, mmap.mmap]:
    """Return a descriptor of new memory, and a mapping of it.

    Raises:
        OSError: The machine has none left.
    """
    fd = os.memfd_create("bluecomm-value", os.MFD_CLOEXEC)
    try:
        # Without memory this fails, where a store into a mapping would kill.
        os.posix_fallocate(fd, 0, nbytes)
        return fd, mmap.mmap(fd, nbytes)
    except BaseException:
        os.close(fd)
        raise


def memory_of(parts: Sequence[Any], nbytes: int) -> int:
    """Return a descriptor of new memory with buffers that follow each other."""
    fd, memory = new_memory(nbytes)
    at = 0
    try:
        for part in parts:
            view = memoryview(part).cast("B")
            memory[at : at + len(view)] = view
            at += len(view)
    except BaseException:
        os.close(fd)
        raise
    return fd


def send_packet(connection: socket.socket, message: CacheMessage, fd: int = -1) -> None:
    """Send a message, and the descriptor of its value if there is one.

    Raises:
        OSError: The other side has gone, or takes no packet.
    """
    socket.send_fds(connection, [message.pack()], [fd] if fd >= 0 else [])


def receive_packet(connection: socket.socket) -> tuple[CacheMessage, mmap.mmap | None]:
    """Return a message and its value.

    Raises:
        OSError: The other side has gone, or sends something else.
    """
    data, fds, _, _ = socket.recv_fds(
        connection, MESSAGE_NBYTES + 1, 1, socket.MSG_CMSG_CLOEXEC
    )
    try:
        if not data:
            raise ConnectionResetError("the other side has closed the connection")
        try:
            message = unpack(data)
        except ValueError as error:
            raise OSError(f"the other side sends no message: {error}") from error
        if not fds:
            return message, None
        if os.fstat(fds[0]).st_size < message.nbytes:
            raise OSError("the other side sends less memory than a value needs")
        return message, mmap.mmap(fds[0], message.nbytes)
    finally:
        for fd in fds:
            os.close(fd)


class _Connection(socket.socket):
    """A connection to a server, which ends with its thread."""

    def __del__(self) -> None:
        self.close()


class _OfThread(threading.local):
    """The connection of a thread, and the process that has made it."""

    connection: tuple[int, _Connection] | None = None


class LocalClient:
    """Asks the server of a rank, from any thread of the rank or of its workers.

    Each thread of each process has a connection of its own, with one request at a time.

    Args:
        address: Address of the server.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._of_thread = _OfThread()

    def ask(
        self, message: CacheMessage, limit_s: float, parts: Sequence[Any] = ()
    ) -> tuple[CacheMessage, mmap.mmap | None]:
        """Return the answer to a request, and the value that came with it.

        Args:
            message: The request.
            limit_s: Seconds that the answer may take.
            parts: Buffers of the value that goes with it.

        Raises:
            TimeoutError: There is no answer.
            OSError: The server has ended, or there is no memory.
        """
        fd = -1
        try:
            connection = self._connection()
            if parts:
                fd = memory_of(parts, message.nbytes)
            connection.settimeout(limit_s)
            send_packet(connection, message, fd)
            return receive_packet(connection)
        except BaseException:
            # So the server ends the claims of this thread, and its answer cannot be
            # taken for that of another request.
            self.close()
            raise
        finally:
            if fd >= 0:
                os.close(fd)

    def _connection(self) -> _Connection:
        known = self._of_thread.connection
        if known is not None and known[0] == os.getpid():
            return known[1]
        self.close()
        made = _Connection(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            made.connect(self.address)
            if not is_own_user(made):
                raise ConnectionRefusedError("another user has this address")
        except BaseException:
            made.close()
            raise
        self._of_thread.connection = os.getpid(), made
        return made

    def close(self) -> None:
        """Close the connection of this thread."""
        known = self._of_thread.connection
        if known is not None:
            known[1].close()
            self._of_thread.connection = None
