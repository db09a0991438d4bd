"""The way of messages and values between the cache servers of different ranks."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch

from bluecomm.data.stores.cluster.messages import (
    MESSAGE_NBYTES,
    CacheMessage,
    Kind,
    unpack,
)
from bluecomm.errors import BluecommError, PeerLostError
from bluecomm.ops.recv import post_receive
from bluecomm.ops.send import post_send
from bluecomm.ops.standing_receive import StandingReceive
from bluecomm.runtime import Communicator, Handle, current_process
from bluecomm.runtime.world import World

_MESSAGES_TAG = 0
_FIRST_VALUE_TAG = 1
# How long a message may take to be sent, and a value to arrive.
VALUE_LIMIT_S = 30.0

# Called at the end of a receive with whether the value has arrived.
Then = Callable[[bool], None]


class Inbox(Protocol):
    """The methods of a server that its route calls, on any thread."""

    def post(self, event: Callable[[], None]) -> None:
        """Have the server's thread call a function."""

    def on_message(self, rank: int, message: CacheMessage) -> None:
        """Take a message; on the server's thread."""

    def on_lost(self, rank: int) -> None:
        """Note that a rank cannot be reached any more; on the server's thread."""

    def on_move(self) -> None:
        """Note that messages may have been lost; on the server's thread."""

    def on_end(self, why: str) -> None:
        """Note that no rank can be reached any more; on the server's thread."""


class CacheRoute(abc.ABC):
    """Sends messages and values to other ranks. The server's thread uses it."""

    @abc.abstractmethod
    def open(self, inbox: Inbox) -> None:
        """Begin to receive messages."""

    @abc.abstractmethod
    def send(self, rank: int, message: CacheMessage, value: Any = None) -> None:
        """Send a message and the value that follows it.

        Args:
            rank: The receiver.
            message: The message.
            value: Writable buffer of the value, which must stay as it is meanwhile.
        """

    @abc.abstractmethod
    def receive(
        self, rank: int, message: CacheMessage, memory: Any, then: Then
    ) -> None:
        """Receive the value that follows a message.

        Args:
            rank: The sender.
            message: The message.
            memory: Writable buffer of the value's size.
            then: Called on the server's thread.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Receive no more messages."""


class EngineRoute(CacheRoute):
    """The way over the engine.

    When ranks join the job, its world ends and another one begins, in which ranks keep
    their numbers. The route then goes on there.

    Args:
        world: The world.
        name: Name of the store, the same on all ranks, and of no other store.
    """

    def __init__(self, world: World, name: str) -> None:
        self._name = name
        self._inbox: Inbox | None = None
        self._stop_watching: Callable[[], None] = lambda: None
        self._enter(world)

    def _enter(self, world: World) -> None:
        owner = f"data.cache.{self._name}"
        self._comm = Communicator(world, range(world.size), owner=owner)
        self._messages = StandingReceive(
            self._comm, _MESSAGES_TAG, MESSAGE_NBYTES, self._on_message, self._goes_on
        )

    def open(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._watch()
        self._messages.open()

    def _watch(self) -> None:
        """Learn of ranks that go."""
        inbox = self._inbox
        assert inbox is not None
        members = self._comm.world.members
        self._stop_watching = members.listen(lambda: inbox.post(self._report_gone))
        self._report_gone()

    def send(self, rank: int, message: CacheMessage, value: Any = None) -> None:
        head = torch.frombuffer(bytearray(message.pack()), dtype=torch.uint8)
        self._start_send(head, rank, _MESSAGES_TAG)
        if value is not None:
            tensor = torch.frombuffer(value, dtype=torch.uint8)
            self._start_send(tensor, rank, _value_tag(message))

    def receive(
        self, rank: int, message: CacheMessage, memory: Any, then: Then
    ) -> None:
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
        tag = _value_tag(message)
        try:
            handle = post_receive(tensor, rank, tag, self._comm, VALUE_LIMIT_S)
        except BluecommError as error:
            self._on_failure(rank, error)
            then(False)
            return
        handle.on_finish(functools.partial(self._on_finish, handle, rank, then))

    def close(self) -> None:
        self._stop_watching()
        self._messages.close()

    def _start_send(self, tensor: torch.Tensor, rank: int, tag: int) -> None:
        try:
            handle = post_send(tensor, rank, tag, self._comm, timeout_s=VALUE_LIMIT_S)
        except BluecommError as error:
            self._on_failure(rank, error)
        else:
            handle.on_finish(functools.partial(self._on_finish, handle, rank, None))

    def _on_finish(self, handle: Handle[Any], rank: int, then: Then | None) -> None:
        """Tell the server how a send or a receive has ended; on any thread."""
        assert self._inbox is not None
        is_done = True
        try:
            handle.wait()
        except Exception as error:
            is_done = False
            self._on_failure(rank, error)
        if then is not None:
            self._inbox.post(functools.partial(then, is_done))

    def _on_failure(self, rank: int, error: Exception) -> None:
        if isinstance(error, PeerLostError):
            assert self._inbox is not None
            self._inbox.post(functools.partial(self._inbox.on_lost, rank))

    def _report_gone(self) -> None:
        assert self._inbox is not None
        for rank in self._comm.world.members.gone:
            self._inbox.on_lost(rank)

    def _on_message(self, rank: int, data: bytes) -> None:
        """Have the server take a message; on any thread."""
        assert self._inbox is not None
        self._inbox.post(functools.partial(self._take, rank, data))

    def _take(self, rank: int, data: bytes) -> None:
        assert self._inbox is not None
        self._inbox.on_message(rank, unpack(data))

    def _goes_on(self, error: Exception) -> bool:
        """Return whether messages may still come in this world; on any thread.

        It may be suspended, a sender may have failed, or all others may be lost.
        """
        if not self._comm.world.is_ending:
            return True
        assert self._inbox is not None
        self._inbox.post(self._move)
        return False

    def _move(self) -> None:
        """Go on in the current world, or tell the server that there is no other one."""
        assert self._inbox is not None
        process = current_process()
        world = process.communicator.world if process.is_initialized else None
        if world is None or world is self._comm.world:
            self._inbox.on_end("its world has ended")
            return
        # Newcomers have the numbers of ranks that had gone.
        self._report_gone()
        self._stop_watching()
        self._enter(world)
        self._watch()
        self._inbox.on_move()
        self._messages.open()


def _value_tag(message: CacheMessage) -> int:
    """Return the tag of the value that follows a message.

    It is used once, so that a value which nobody waits for any more cannot be taken for
    another one.
    """
    is_answer = message.kind is Kind.FOUND
    return _FIRST_VALUE_TAG + 2 * message.number + is_answer
