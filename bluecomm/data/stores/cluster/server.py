"""The cache server of a rank: a thread that answers for the store of its machine.

All of its state belongs to this thread; others only post events. It asks other servers
for the processes of its rank, and answers other servers from the memory of its machine.
docs/cache.md has the states.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import mmap
import os
import socket
import time
import weakref
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from bluecomm.data.stores.cluster.event_loop import EventLoop
from bluecomm.data.stores.cluster.introduction import Introduction
from bluecomm.data.stores.cluster.local_socket import (
    is_own_user,
    listen,
    new_memory,
    receive_packet,
    send_packet,
)
from bluecomm.data.stores.cluster.machines import CacheMachines
from bluecomm.data.stores.cluster.messages import CacheMessage, Kind
from bluecomm.data.stores.cluster.owned_part import OwnedPart
from bluecomm.data.stores.cluster.route import VALUE_LIMIT_S, CacheRoute
from bluecomm.data.stores.memory.memory_store import MemoryStore

_log = logging.getLogger("bluecomm")

# How long other servers may take to answer, beyond the time that a claim may wait.
ANSWER_LIMIT_S = 5.0
LOADING_LIMIT_S = 60.0
# How soon a server without descriptors looks at connections again.
_ACCEPT_AGAIN_S = 1.0
# The answers to a process when the owner does not answer.
_WITHOUT_OWNER = {
    Kind.FIND: Kind.MISSING,
    Kind.CLAIM: Kind.LOAD_HERE,
    Kind.KEEP: Kind.DONE,
}
_ANSWERS = (Kind.FOUND, Kind.MISSING, Kind.LOAD, Kind.WAIT, Kind.DONE)

_RUNNING: weakref.WeakSet[CacheServer] = weakref.WeakSet()


@dataclasses.dataclass(eq=False)
class _Client:
    """A connection from a process of this rank.

    Attributes:
        connection: The socket.
        claims: Keys that the process has claimed, with the ranks that have agreed.
    """

    connection: socket.socket
    claims: dict[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class _Asked:
    """A request of this rank that the owner has not answered.

    Attributes:
        message: The request.
        client: The process that waits for the answer.
        rank: The rank that is asked.
        until_s: When the rank has taken too long.
    """

    message: CacheMessage
    client: _Client
    rank: int = -1
    until_s: float = float("inf")


class CacheServer:
    """Answers the processes of a rank, and other servers.

    Args:
        rank: The rank.
        machine_of: Machine of each rank of the store.
        memory: The memory of this machine.
        route: The way to other servers, which belongs to this one.
        others: The ranks that a newcomer has yet to meet.
        has_joined: Returns whether a newcomer takes part in the job by now.

    Raises:
        OSError: The socket cannot be made.
    """

    def __init__(
        self,
        rank: int,
        machine_of: dict[int, int],
        memory: MemoryStore,
        route: CacheRoute,
        others: Collection[int] = (),
        has_joined: Callable[[], bool] = lambda: True,
    ) -> None:
        self._rank = rank
        self._route = route
        self._machines = CacheMachines(rank, machine_of)
        self._part = OwnedPart(
            self._machines.own, machine_of, memory, LOADING_LIMIT_S, self._send
        )
        self._introduction = Introduction(others, has_joined, self._introduce)
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        # Descriptors of values that other servers are sending.
        self._arriving: set[int] = set()
        self._listener, self.address = listen()
        self._loop = EventLoop(f"the cache server of rank {rank}", self._end_waits)
        self._loop.add(self._listener, self._accept)

    def start(self) -> None:
        """Begin to answer."""
        _RUNNING.add(self)
        self._loop.start(lambda: self._route.open(self), self._leave)

    def stop(self) -> None:
        """Tell the others, and end the thread. Does nothing if it has ended."""
        self._loop.stop()

    def post(self, event: Callable[[], None]) -> None:
        """See ``Inbox``."""
        self._loop.post(event)

    def leave_fork(self) -> None:
        """Close the copies of the descriptors in a fork."""
        self._loop.leave_fork()
        self._close_arriving()

    def _leave(self) -> None:
        _RUNNING.discard(self)
        for rank in self._machines.ranks_left:
            if rank != self._rank:
                self._route.send(rank, CacheMessage(Kind.LEAVE))
        self._route.close()
        # The route is closed, so the receives that would close these do not end.
        self._close_arriving()

    def _close_arriving(self) -> None:
        while self._arriving:
            os.close(self._arriving.pop())

    # -- processes of this rank -------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            text = "the cache server of rank %d cannot take a connection: %s"
            _log.warning(text, self._rank, error)
            self._loop.pause(self._listener, _ACCEPT_AGAIN_S)
            return
        if not is_own_user(connection):
            connection.close()
            return
        connection.setblocking(False)
        client = _Client(connection)
        self._loop.add(connection, functools.partial(self._read, client))

    def _read(self, client: _Client) -> None:
        try:
            message, value = receive_packet(client.connection)
        except OSError:
            self._forget(client)
            return
        if message.kind in (Kind.FIND, Kind.CLAIM):
            self._ask(_Asked(message, client))
        else:
            self._end_claim(client, message, value)

    def _forget(self, client: _Client) -> None:
        """End the claims of a process that has closed its connection."""
        self._loop.remove(client.connection)
        for key in list(client.claims):
            self._end_claim(client, CacheMessage(Kind.RELEASE, key=key), None)

    def _end_claim(
        self, client: _Client, message: CacheMessage, value: mmap.mmap | None
    ) -> None:
        """Pass KEEP or RELEASE on to the rank that has agreed to the claim."""
        rank = client.claims.pop(message.key, None)
        if rank not in self._machines.ranks_left:
            rank = self._machines.server_of(self._machines.owner_of(message.key))
        message = message._replace(number=next(self._numbers))
        if message.kind is Kind.KEEP:
            until_s = time.monotonic() + ANSWER_LIMIT_S + VALUE_LIMIT_S
            self._asked[message.number] = _Asked(message, client, rank, until_s)
        else:
            self._tell(client, message.answer(Kind.DONE))
        self._send(rank, message, value)

    def _tell(self, client: _Client, message: CacheMessage, fd: int = -1) -> None:
        """Answer a process, unless it has gone."""
        if self._loop.has(client.connection):
            with contextlib.suppress(OSError):
                send_packet(client.connection, message, fd)

    # -- requests to other servers ----------------------------------------------------

    def _ask(self, asked: _Asked) -> None:
        """Pass a request on to the owner of its key, unless the process has gone."""
        if not self._loop.has(asked.client.connection):
            return
        if asked.message.kind is Kind.KEEP:
            self._give_up(asked)
            return
        # A new one each time, so that late answers can be told apart.
        asked.message = asked.message._replace(number=next(self._numbers))
        message = asked.message
        owner = self._machines.owner_of(message.key)
        if message.kind is Kind.FIND and owner == self._machines.own:
            # The process has looked into the memory itself.
            self._give_up(asked)
            return
        asked.rank = self._machines.server_of(owner)
        asked.until_s = time.monotonic() + ANSWER_LIMIT_S
        self._asked[message.number] = asked
        self._send(asked.rank, message)

    def _on_answer(self, rank: int, answer: CacheMessage) -> None:
        if answer.kind is Kind.WAIT:
            if answer.number in self._asked:
                until_s = time.monotonic() + LOADING_LIMIT_S + ANSWER_LIMIT_S
                self._asked[answer.number].until_s = until_s
            return
        asked = self._asked.pop(answer.number, None)
        if answer.nbytes:
            self._receive_found(rank, answer, asked)
        elif asked is None:
            if answer.kind is Kind.LOAD:
                # No process waits for the claim any more, so none would end it.
                self._send(rank, CacheMessage(Kind.RELEASE, key=answer.key))
        elif answer.kind is Kind.LOAD:
            self._pass_claim_on(rank, answer, asked.client)
        else:
            self._tell(asked.client, answer)

    def _pass_claim_on(self, rank: int, answer: CacheMessage, client: _Client) -> None:
        """Let a process load, or end its claim if it has gone."""
        client.claims[answer.key] = rank
        if not self._loop.has(client.connection):
            release = CacheMessage(Kind.RELEASE, key=answer.key)
            self._end_claim(client, release, None)
            return
        is_own = self._machines.machine_of[rank] == self._machines.own
        kind = Kind.LOAD_HERE if is_own else Kind.LOAD
        self._tell(client, answer._replace(kind=kind))

    def _receive_found(
        self, rank: int, answer: CacheMessage, asked: _Asked | None
    ) -> None:
        """Receive a value, also if nobody waits for it any more."""
        try:
            fd, memory = new_memory(answer.nbytes)
        except OSError:
            if asked is not None:
                self._give_up(asked)
            return
        self._arriving.add(fd)

        def finish(is_received: bool) -> None:
            try:
                if asked is not None and is_received:
                    self._tell(asked.client, answer, fd)
                elif asked is not None:
                    self._ask(asked)
            finally:
                self._arriving.discard(fd)
                os.close(fd)

        self._route.receive(rank, answer, memory, finish)

    def _end_waits(self) -> float:
        """End waits that take too long; return when the next ones may be."""
        now = time.monotonic()
        for asked in [one for one in self._asked.values() if one.until_s <= now]:
            if self._machines.mute(asked.rank):
                _log.warning(
                    "the cache server of rank %d has not answered rank %d for %g s, "
                    "and is asked again later. Until then, samples of its machine may "
                    "be loaded again",
                    *(asked.rank, self._rank, ANSWER_LIMIT_S),
                )
            self._ask_again([asked])
        self._part.end_waits()
        limits = [asked.until_s for asked in self._asked.values()]
        limits += [self._part.claims.next_limit_s, self._introduction.step()]
        return min(limits)

    def _give_up(self, asked: _Asked) -> None:
        """Let a process load what this server cannot find."""
        kind = _WITHOUT_OWNER[asked.message.kind]
        self._tell(asked.client, asked.message.answer(kind))

    def _ask_again(self, some: list[_Asked]) -> None:
        for asked in some:
            # An answer to another one may have ended it.
            if self._asked.pop(asked.message.number, None) is not None:
                self._ask(asked)

    # -- other servers, and this one as an owner --------------------------------------

    def on_message(self, rank: int, message: CacheMessage) -> None:
        """See ``Inbox``."""
        if message.kind is Kind.LEAVE:
            self._lose(rank)
        elif message.kind in (Kind.JOIN, Kind.MEET):
            self._meet(rank, message)
        elif message.kind in _ANSWERS:
            self._on_answer(rank, message)
        elif message.nbytes:
            value = np.empty(message.nbytes, np.uint8)

            def finish(is_received: bool) -> None:
                self._part.serve(rank, message, value if is_received else None)

            self._route.receive(rank, message, value, finish)
        else:
            self._part.serve(rank, message)

    def _send(self, rank: int, message: CacheMessage, value: Any = None) -> None:
        """Send a message, also to this rank itself."""
        if rank != self._rank:
            self._route.send(rank, message, value)
        elif message.kind in _ANSWERS:
            self._on_answer(rank, message)
        else:
            self._part.serve(rank, message, value)

    # -- ranks that come and go -------------------------------------------------------

    def _introduce(self, rank: int) -> None:
        self._route.send(rank, CacheMessage(Kind.JOIN, key=self._machines.own))

    def _meet(self, rank: int, message: CacheMessage) -> None:
        """Use the machine of a newcomer, or of a rank that has answered this one."""
        machine = message.key
        if self._machines.machine_of.get(rank) != machine:
            self._lose(rank)  # the process that had this number
            self._machines.join(rank, machine)
        if message.kind is Kind.JOIN:
            self._route.send(rank, CacheMessage(Kind.MEET, key=self._machines.own))
        self._introduction.forget(rank)

    def on_lost(self, rank: int) -> None:
        """See ``Inbox``."""
        if self._lose(rank) and self._machines.is_lost(self._machines.machine_of[rank]):
            self._report(
                f"the cache goes on without the machine of rank {rank}; its samples "
                "are loaded again"
            )

    def on_end(self, why: str) -> None:
        """See ``Inbox``."""
        self._report(
            f"the cache goes on with the memory of single machines, because {why}; "
            "make the dataset anew to share it"
        )
        for rank in self._machines.ranks_left:
            self._lose(rank)

    def on_move(self) -> None:
        """See ``Inbox``."""
        self._ask_again(list(self._asked.values()))

    def _report(self, text: str) -> None:
        """Warn on the first rank that is left."""
        is_first = self._rank == self._machines.ranks_left[0]
        _log.log(logging.WARNING if is_first else logging.INFO, "%s", text)

    def _lose(self, rank: int) -> bool:
        """Do without a rank; return whether that is news."""
        self._introduction.forget(rank)
        if not self._machines.lose(rank):
            return False
        self._part.lose(rank)
        self._ask_again([one for one in self._asked.values() if one.rank == rank])
        return True


def stop_all() -> None:
    """Stop all servers of this process, before the world ends."""
    for server in list(_RUNNING):
        server.stop()


def _leave_fork() -> None:
    for server in list(_RUNNING):
        server.leave_fork()
    _RUNNING.clear()


os.register_at_fork(after_in_child=_leave_fork)
