"""Keeps the ledgers of a group of ranks; see docs/dynamic-partition.md.

Each rank of the group has the service from its first use on, also between two passes
over the data, because the others may need it as the server.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
import weakref

from bluecomm.data.dynamic.exchange import LedgerReply, LedgerRequest
from bluecomm.data.dynamic.ledger import LedgerState
from bluecomm.data.dynamic.message_port import MessagePort
from bluecomm.data.dynamic.messages import Message, decode, encode
from bluecomm.data.dynamic.replica import Replica
from bluecomm.errors import (
    BluecommError,
    CommunicationTimeout,
    PeerLostError,
    SuspendedError,
)
from bluecomm.runtime import Communicator, current_process
from bluecomm.runtime.farewell import serve_until_all_finish

_log = logging.getLogger("bluecomm")

_NAME = "data.ledger"
# How soon a call without a reply is repeated.
_REPEAT_S = 1.0
# How long a call waits before it warns.
_WARN_AFTER_S = 10.0
# How long the ranks may take to decide that a rank lost by the engine has gone.
_REPORT_S = 10.0


class LedgerService:
    """This rank's part in the ledgers of a group.

    Thread-safe. The threads that ask, that of callbacks and that of the members' feed
    use it, one at a time.

    Args:
        group: The ranks.

    Attributes:
        rank: This rank in the world.
        deadline_s: Seconds for which a call waits at most.
    """

    def __init__(self, group: Communicator) -> None:
        world = group.world
        self._world = world
        self._members = world.members
        self.rank = world.rank
        self.deadline_s = world.config.operation_timeout_s
        self._comm = Communicator(
            world, group.ranks, owner=f"{_NAME}.{group.group_id:x}"
        )
        self._changed = threading.Condition()
        self._replica = Replica(world.rank, group.ranks, self._send, self._on_answer)
        self._answers: dict[str, LedgerReply] = {}
        # Messages that the replica has sent in its current step.
        self._outbox: collections.deque[tuple[int, bytes]] = collections.deque()
        self._is_sending = False
        # The error that ends the service.
        self._error: BluecommError | None = None
        # The error since which nothing has arrived, and its time.
        self._deaf: tuple[BluecommError, float] | None = None
        self._port = MessagePort(
            self._comm, self._on_message, self._on_lost, self._on_failure
        )
        if self._members.survives_losses:
            self._members.listen(self._on_members)
            self._on_members()
        self._port.open()

    @property
    def living(self) -> list[int]:
        """The ranks that have not gone."""
        with self._changed:
            return self._replica.living

    @property
    def gone(self) -> list[int]:
        """The ranks that have gone, because they are lost or have ended."""
        with self._changed:
            return sorted({*self._comm.ranks} - {*self._replica.living})

    def call(
        self, name: str, request: LedgerRequest, begin: LedgerState
    ) -> LedgerReply:
        """Ask the server, and wait for the reply.

        Args:
            name: Name of the ledger; one thread at a time calls with it.
            request: The request.
            begin: The state with which the ledger begins.

        Raises:
            CommunicationTimeout: The server has not answered.
            PeerLostError: The server is lost, and the job does not survive losses; or
                the others have excluded this rank.
            ShutdownError: The world has ended.
        """
        with self._changed:
            self._answers.pop(name, None)
            self._replica.ask(name, request, begin)
            self._send_all()
            try:
                self._await_answer(name, begin)
                return self._answers.pop(name)
            finally:
                self._replica.forget(name)

    def tell(self, name: str, request: LedgerRequest, begin: LedgerState) -> None:
        """Send a request to the server, and wait for nothing."""
        with self._changed:
            self._replica.ask(name, request, begin)
            self._replica.forget(name)
            self._answers.pop(name, None)  # a server may have answered itself
            self._send_all()

    def newest(self, name: str, begin: LedgerState) -> LedgerState:
        """Return the newest state that this rank knows."""
        with self._changed:
            return self._replica.newest(name, begin).state

    def serve_until_all_end(self) -> None:
        """Keep ledgers for the others until all ranks have ended.

        Collective in a job that survives no losses. In one that does, the others go on
        without this rank.
        """
        is_needed = self._comm.size > 1 and not self._members.survives_losses
        if is_needed and not self._world.is_closed:
            serve_until_all_finish(self._comm, "the ledger of its data")

    def _await_answer(self, name: str, begin: LedgerState) -> None:
        limit_s = self.deadline_s
        waited_s = 0.0
        has_warned = False
        while name not in self._answers:
            self._check()
            if waited_s >= limit_s:
                raise self._too_late(limit_s)
            if waited_s >= _WARN_AFTER_S and not has_warned:
                has_warned = True
                _log.warning(
                    "rank %d has waited %.0f s for the ledger of its data, which rank "
                    "%d keeps",
                    self.rank,
                    waited_s,
                    self._replica.server,
                )
            since = time.monotonic()
            if self._changed.wait_for(
                lambda: name in self._answers or self._error is not None,
                min(_REPEAT_S, limit_s),
            ):
                continue
            if not self._is_paused():
                waited_s += time.monotonic() - since
                self._replica.repeat(name, begin)
                self._send_all()

    def _check(self) -> None:
        """Raise the error that ends the service, if there is one."""
        self._world.check_usable()
        if self._error is not None:
            raise self._error
        if self._deaf is not None and len(self._replica.living) > 1:
            error, since = self._deaf
            if time.monotonic() - since > _REPORT_S:
                raise error

    def _is_paused(self) -> bool:
        """Return whether nobody can answer now, and deadlines do not go on."""
        try:
            self._world.check_running("DataLoader", None)
        except SuspendedError:
            return True
        return self._members.is_held

    def _too_late(self, limit_s: float) -> CommunicationTimeout:
        server = self._replica.server
        return CommunicationTimeout.describe(
            f"rank {server}, which keeps the ledger of the data, has not answered",
            operation="DataLoader",
            rank=self.rank,
            peers=[server],
            timeout_s=limit_s,
            remedy="It may have stopped; look at the ranks' output. With bfrun "
            "--on-failure continue the others go on without it",
        )

    def _server_lost(self, error: BluecommError) -> PeerLostError:
        server = self._replica.server
        return PeerLostError.describe(
            f"rank {server}, which keeps the ledger of the data, cannot be reached any "
            f"more: {error}",
            operation="DataLoader",
            rank=self.rank,
            peers=[server],
            remedy="With bfrun --on-failure continue the others go on without it",
        )

    # -- what the port and the members report -----------------------------------------

    def _send(self, rank: int, message: Message) -> None:
        # A ledger goes on changing.
        self._outbox.append((rank, encode(message)))

    def _send_all(self) -> None:
        """Send the messages of a step, whose losses may lead to other steps."""
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self._outbox:
                self._port.send(*self._outbox.popleft())
        finally:
            self._is_sending = False

    def _on_answer(self, name: str, reply: LedgerReply) -> None:
        self._answers[name] = reply
        self._changed.notify_all()

    def _on_message(self, rank: int, message: bytes) -> None:
        with self._changed:
            self._deaf = None
            self._replica.take(rank, decode(message))
            self._send_all()

    def _on_members(self) -> None:
        with self._changed:
            self._lose({*self._members.gone} & {*self._comm.ranks})

    def _lose(self, gone: set[int]) -> None:
        self._replica.lose(gone)
        self._send_all()

    def _on_lost(self, rank: int, error: BluecommError) -> None:
        """Go on without a backup that has ended, in a job that survives no losses.

        In one that does, the ranks agree on who has gone.
        """
        if self._members.survives_losses or not isinstance(error, PeerLostError):
            return
        with self._changed:
            if rank == self._replica.server:
                self._end(self._server_lost(error))
            elif self._replica.server == self.rank:
                self._lose({*self.gone, rank})

    def _on_failure(self, error: Exception) -> bool:
        """Note that nothing arrives; return whether a rank is left that could send."""
        with self._changed:
            if isinstance(error, PeerLostError):
                if not self._members.survives_losses:
                    self._lose_all(error)
                elif self._deaf is None:
                    self._deaf = error, time.monotonic()
            return self._error is None and len(self._replica.living) > 1

    def _lose_all(self, error: PeerLostError) -> None:
        if self._replica.server == self.rank:
            self._lose({*self._comm.ranks} - {self.rank})
        else:
            self._end(self._server_lost(error))

    def _end(self, error: BluecommError) -> None:
        self._error = error
        self._changed.notify_all()


_services: weakref.WeakKeyDictionary[Communicator, LedgerService] = (
    weakref.WeakKeyDictionary()
)
_opening = threading.Lock()


def ledger_service(group: Communicator) -> LedgerService:
    """Return the service of a group on this rank, which begins with its first use."""
    current_process().before_shutdown(_serve_until_all_end)
    with _opening:
        service = _services.get(group)
        if service is None:
            service = _services[group] = LedgerService(group)
        return service


def _serve_until_all_end() -> None:
    for service in list(_services.values()):
        service.serve_until_all_end()
