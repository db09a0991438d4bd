"""The ledger of a job of bluecomm: one rank keeps it, and the next one has a copy."""

from __future__ import annotations

import threading

from bluecomm.data.dynamic.cell import Cell
from bluecomm.data.dynamic.exchange import LedgerReply, LedgerRequest
from bluecomm.data.dynamic.ledger import LedgerState
from bluecomm.data.dynamic.ledger_service import ledger_service
from bluecomm.elastic.group import current_group


def open_service() -> None:
    """Let this rank keep ledgers for the others from now on; communicates nothing."""
    ledger_service(current_group())


class MemberCell(Cell):
    """A ledger of the ranks that train together; see docs/dynamic-partition.md.

    Making it communicates nothing. Calls do not wait for other ranks' programs, only
    for the server's thread of callbacks.

    Args:
        name: Name of the ledger, the same on all ranks, and used for one ledger only.
        initial: The state with which it begins, the same on all ranks.
    """

    def __init__(self, name: str, initial: LedgerState) -> None:
        self._service = ledger_service(current_group())
        self._name = name
        self._initial = initial
        self._calling = threading.Lock()
        self.holder = str(self._service.rank)
        self.deadline_s = self._service.deadline_s

    def call(self, request: LedgerRequest) -> LedgerReply:
        """Have the ledger carry out a request; safe from any thread.

        Raises:
            CommunicationTimeout: The rank that keeps the ledger has not answered.
            PeerLostError: It is lost, and the job does not survive losses; or the
                others have excluded this rank.
            ShutdownError: The world has ended.
        """
        with self._calling:
            return self._service.call(self._name, request, self._initial)

    def tell(self, request: LedgerRequest) -> None:
        """Send the rank's last request, and wait for nothing."""
        with self._calling:
            self._service.tell(self._name, request, self._initial)

    def ledger(self) -> LedgerState:
        """Return the newest state that this rank has got; safe from any thread."""
        return self._service.newest(self._name, self._initial)

    def ranks(self) -> int:
        return len(self._service.living)

    def lost(self) -> list[str]:
        return [str(rank) for rank in self._service.gone]

    def close(self) -> None:
        pass  # the others may still need what this rank keeps
