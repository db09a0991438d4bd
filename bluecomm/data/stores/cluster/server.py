"""The cache server of a rank: a thread that answers for the store of its machine.

All of its state belongs to this thread; others only post events. It asks other servers
for the processes of its rank, and answers other servers from the memory of its machine.
docs/data.md has the states.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import logging
import mmap
import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from bluecomm.data.stores.cluster.claims import Claimant, ClaimOutcome, Claims
from bluecomm.data.stores.cluster.local_socket import (
    is_own_user,
    listen,
    new_memory,
    receive_packet,
    send_packet,
)
from bluecomm.data.stores.cluster.machines import CacheMachines
from bluecomm.data.stores.cluster.messages import CacheMessage, Kind
from bluecomm.data.stores.cluster.route import VALUE_LIMIT_S, CacheRoute
from bluecomm.data.stores.memory.memory_store import MemoryStore

_log = logging.getLogger("bluecomm")

# How long other servers may take to answer, beyond the time that a claim may wait.
ANSWER_LIMIT_S = 5.0
LOADING_LIMIT_S = 60.0
_STOP_LIMIT_S = 5.0
_LONGEST_PAUSE_S = 1.0

# The answers to a process when the owner does not answer.
_WITHOUT_OWNER = {
    Kind.FIND: Kind.MISSING,
    Kind.CLAIM: Kind.LOAD_HERE,
    Kind.KEEP: Kind.DONE,
}

_RUNNING: weakref.WeakSet[CacheServer] = weakref.WeakSet()


@dataclasses.dataclass(eq=False)
class _Asker:
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
        asker: Who waits for the answer.
        rank: The rank that is asked.
        until_s: When the rank has taken too long.
    """

    message: CacheMessage
    asker: _Asker
    rank: int = -1
    until_s: float = float("inf")


class CacheServer:
    """Answers the processes of a rank, and other servers.

    Args:
        rank: The rank.
        machine_of: Machine of each rank of the store.
        memory: The memory of this machine.
        route: The way to other servers, which belongs to this one.

    Raises:
        OSError: The socket cannot be made.
    """

    def __init__(
        self,
        rank: int,
        machine_of: dict[int, int],
        memory: MemoryStore,
        route: CacheRoute,
    ) -> None:
        self._rank = rank
        self._memory = memory
        self._route = route
        self._machines = CacheMachines(rank, machine_of)
        self._claims = Claims(machine_of, LOADING_LIMIT_S)
        self._events: collections.deque[Callable[[], None]] = collections.deque()
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._askers: dict[socket.socket, _Asker] = {}
        self._is_stopping = False
        self._listener, self.address = listen()
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Held while the waker is used, so that it is not closed meanwhile.
        self._waking = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._waker, selectors.EVENT_READ, self._wake_up)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._thread = threading.Thread(
            target=self._run, name="bluecomm-cache", daemon=True
        )

    def start(self) -> None:
        """Begin to answer."""
        _RUNNING.add(self)
        self._thread.start()

    def stop(self) -> None:
        """Tell the others, and end the thread. Does nothing if it has ended."""
        self._is_stopping = True
        self.post(lambda: None)
        self._thread.join(_STOP_LIMIT_S)

    # -- events of other threads ------------------------------------------------------

    def post(self, event: Callable[[], None]) -> None:
        """See ``Inbox``."""
        self._events.append(event)
        with self._waking:
            if self._waker >= 0:
                os.eventfd_write(self._waker, 1)

    def post_later(self, event: Callable[[], None], seconds: float) -> None:
        """See ``Inbox``."""
        self._later.append((time.monotonic() + seconds, event))

    # -- the thread -------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._route.open(self)
            while not self._is_stopping:
                self._turn()
            for rank in self._machines.ranks_left:
                if rank != self._rank:
                    self._route.send(rank, CacheMessage(Kind.LEAVE))
        except Exception:
            _log.exception("the cache server of rank %d ends", self._rank)
        finally:
            self._close()

    def _turn(self) -> None:
        """Wait for something to happen, and act on it."""
        for key, _ in self._selector.select(self._pause_s()):
            self._call(key.data)
        while self._events:
            self._call(self._events.popleft())
        now = time.monotonic()
        due = [event for at, event in self._later if at <= now]
        self._later = [one for one in self._later if one[0] > now]
        for event in (*due, self._end_waits):
            self._call(event)

    def _call(self, event: Callable[[], None]) -> None:
        try:
            event()
        except Exception:  # one request must not end the others
            _log.exception("the cache server of rank %d failed", self._rank)

    def _pause_s(self) -> float | None:
        limits = [asked.until_s for asked in self._asked.values()]
        limits += [at for at, _ in self._later]
        first = min([*limits, self._claims.next_limit_s])
        if first == float("inf"):
            return None
        return min(max(0.0, first - time.monotonic()), _LONGEST_PAUSE_S)

    def _wake_up(self) -> None:
        os.eventfd_read(self._waker)

    def _close(self) -> None:
        _RUNNING.discard(self)
        self._route.close()
        for one in (*self._askers, self._listener):
            # Forks may have copies of the descriptors.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._waking:
            self._close_descriptors()

    def _close_descriptors(self) -> None:
        self._selector.close()
        os.close(self._waker)
        self._waker = -1
        for one in (*self._askers, self._listener):
            one.close()
        self._askers.clear()

    def leave_fork(self) -> None:
        """Close the copies of the descriptors in a fork."""
        self._close_descriptors()

    # -- processes of this rank -------------------------------------------------------

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if not is_own_user(connection):
            connection.close()
            return
        connection.setblocking(False)
        asker = _Asker(connection)
        self._askers[connection] = asker
        self._selector.register(
            connection, selectors.EVENT_READ, functools.partial(self._read, asker)
        )

    def _read(self, asker: _Asker) -> None:
        try:
            message, value = receive_packet(asker.connection)
        except OSError:
            self._forget(asker)
            return
        if message.kind in (Kind.FIND, Kind.CLAIM):
            self._ask(_Asked(message, asker))
        else:
            self._end_claim(asker, message, value)

    def _forget(self, asker: _Asker) -> None:
        """End the claims of a process that has closed its connection."""
        self._selector.unregister(asker.connection)
        asker.connection.close()
        del self._askers[asker.connection]
        for key in list(asker.claims):
            self._end_claim(asker, CacheMessage(Kind.RELEASE, key=key), None)

    def _end_claim(
        self, asker: _Asker, message: CacheMessage, value: mmap.mmap | None
    ) -> None:
        """Pass KEEP or RELEASE on to the rank that has agreed to the claim."""
        rank = asker.claims.pop(message.key, None)
        if rank not in self._machines.ranks_left:
            rank = self._machines.server_of(self._machines.owner_of(message.key))
        message = message._replace(number=next(self._numbers))
        if message.kind is Kind.KEEP:
            until_s = time.monotonic() + ANSWER_LIMIT_S + VALUE_LIMIT_S
            self._asked[message.number] = _Asked(message, asker, rank, until_s)
        else:
            self._tell(asker, message.answer(Kind.DONE))
        if rank == self._rank:
            self._serve(rank, message, value)
        else:
            self._route.send(rank, message, value)

    def _tell(self, asker: _Asker, message: CacheMessage, fd: int = -1) -> None:
        """Answer a process, unless it has gone."""
        if asker.connection in self._askers:
            with contextlib.suppress(OSError):
                send_packet(asker.connection, message, fd)

    # -- requests to other servers ----------------------------------------------------

    def _ask(self, asked: _Asked) -> None:
        """Pass a request on to the owner of its key, unless the process has gone."""
        if asked.asker.connection not in self._askers:
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
        waits_s = LOADING_LIMIT_S if message.kind is Kind.CLAIM else 0.0
        asked.until_s = time.monotonic() + ANSWER_LIMIT_S + waits_s
        self._asked[message.number] = asked
        if asked.rank == self._rank:
            self._serve(self._rank, message, None)
        else:
            self._route.send(asked.rank, message)

    def _on_answer(self, rank: int, answer: CacheMessage) -> None:
        asked = self._asked.pop(answer.number, None)
        if answer.nbytes:
            self._receive_found(rank, answer, asked)
        elif asked is None:
            if answer.kind is Kind.LOAD:
                # Nobody waits for it any more, so nobody would end it.
                self._send(rank, CacheMessage(Kind.RELEASE, key=answer.key))
        elif answer.kind is Kind.LOAD:
            asked.asker.claims[answer.key] = rank
            is_own = self._machines.machine_of[rank] == self._machines.own
            kind = Kind.LOAD_HERE if is_own else Kind.LOAD
            self._tell(asked.asker, answer._replace(kind=kind))
            if asked.asker.connection not in self._askers:
                self._end_claim(
                    asked.asker, CacheMessage(Kind.RELEASE, key=answer.key), None
                )
        else:
            self._tell(asked.asker, answer)

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

        def finish(is_received: bool) -> None:
            try:
                if asked is not None and is_received:
                    self._tell(asked.asker, answer, fd)
                elif asked is not None:
                    self._ask(asked)
            finally:
                os.close(fd)

        self._route.receive(rank, answer, memory, finish)

    def _end_waits(self) -> None:
        """Do without machines that have taken too long, and let claimants load."""
        now = time.monotonic()
        late = [asked for asked in self._asked.values() if asked.until_s <= now]
        for asked in late:
            machine = self._machines.machine_of[asked.rank]
            if machine != self._machines.own and self._machines.mute(machine):
                _log.warning(
                    "the cache server of rank %d has not answered rank %d for %g s. "
                    "Samples of its machine are loaded again, and it is asked again "
                    "later",
                    *(asked.rank, self._rank, ANSWER_LIMIT_S),
                )
            del self._asked[asked.message.number]
            if machine != self._machines.own:
                self._ask(asked)
            else:
                self._give_up(asked)
        self._pass_on(self._claims.take_late())

    def _give_up(self, asked: _Asked) -> None:
        """Let a process load what this server cannot find."""
        self._tell(
            asked.asker, asked.message.answer(_WITHOUT_OWNER[asked.message.kind])
        )

    # -- requests of other servers, and of this one -----------------------------------

    def on_message(self, rank: int, message: CacheMessage) -> None:
        """See ``Inbox``."""
        if message.kind is Kind.LEAVE:
            self._lose(rank)
        elif message.kind in (Kind.FOUND, Kind.MISSING, Kind.LOAD, Kind.DONE):
            self._on_answer(rank, message)
        elif message.nbytes:
            value = np.empty(message.nbytes, np.uint8)

            def finish(is_received: bool) -> None:
                self._serve(rank, message, value if is_received else None)

            self._route.receive(rank, message, value, finish)
        else:
            self._serve(rank, message, None)

    def _serve(self, rank: int, message: CacheMessage, value: Any) -> None:
        """Act on a request as the owner of its key."""
        if message.kind is Kind.FIND:
            if not self._give(rank, message):
                self._send(rank, message.answer(Kind.MISSING))
        elif message.kind is Kind.CLAIM:
            if self._give(rank, message):
                return
            if self._claims.claim(Claimant(rank, message)):
                self._send(rank, message.answer(Kind.LOAD))
        else:
            if value is not None:
                with contextlib.suppress(OSError, ValueError):
                    cost_s = message.cost_ns * 1e-9
                    self._memory.put_flat(message.key, [value], cost_s)
            self._settle(message.key, rank)
            if message.kind is Kind.KEEP:
                self._send(rank, message.answer(Kind.DONE))

    def _give(self, rank: int, message: CacheMessage) -> bool:
        """Answer with the value of a key, if there is one."""
        key = message.key
        if self._machines.machine_of[rank] == self._machines.own:
            if not self._memory.has(key):
                return False
            self._send(rank, message.answer(Kind.FOUND))
            return True
        flat = self._memory.get_flat(key)
        if flat is None:
            return False
        self._route.send(rank, message.answer(Kind.FOUND, flat.nbytes), flat)
        return True

    def _settle(self, key: int, rank: int) -> None:
        """End the claim of a rank."""
        is_found = self._memory.has(key)
        self._pass_on(self._claims.end(key, rank, is_found=is_found))

    def _pass_on(self, outcomes: list[ClaimOutcome]) -> None:
        for (rank, request), is_found in outcomes:
            if not (is_found and self._give(rank, request)):
                self._send(rank, request.answer(Kind.LOAD))

    def _send(self, rank: int, message: CacheMessage) -> None:
        """Send a message without a value, also to this rank itself."""
        if rank != self._rank:
            self._route.send(rank, message)
        else:
            self.on_message(rank, message)

    # -- ranks that go ----------------------------------------------------------------

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

    def _report(self, text: str) -> None:
        """Warn on the first rank that is left."""
        is_first = self._rank == self._machines.ranks_left[0]
        _log.log(logging.WARNING if is_first else logging.INFO, "%s", text)

    def _lose(self, rank: int) -> bool:
        """Do without a rank; return whether that is news."""
        if not self._machines.lose(rank):
            return False
        self._claims.forget(rank)
        for key in self._claims.keys_of(rank):
            self._settle(key, rank)
        for asked in [one for one in self._asked.values() if one.rank == rank]:
            del self._asked[asked.message.number]
            self._ask(asked)
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
