"""The base of the cells: where a ledger lives, and how a rank reaches it."""

from __future__ import annotations

import abc

from bluecomm.data.dynamic.exchange import LedgerReply, LedgerRequest
from bluecomm.data.dynamic.ledger import LedgerState


class Cell(abc.ABC):
    """Keeps the ledger of one pass over the data for all its ranks.

    Attributes:
        holder: This rank's number as text; no other process has it in this ledger.
        deadline_s: Seconds that a rank waits for others without any change.
    """

    holder: str
    deadline_s: float

    @abc.abstractmethod
    def call(self, request: LedgerRequest) -> LedgerReply:
        """Have the ledger carry out a request; safe from any thread.

        Raises:
            TimeoutError: The ledger has not answered within the deadline.
        """

    def tell(self, request: LedgerRequest) -> None:
        """Send the rank's last request; safe from any thread.

        A cell need not wait for the reply, because no rank needs it, and the other
        ranks may have ended already.
        """
        self.call(request)

    @abc.abstractmethod
    def ledger(self) -> LedgerState:
        """Return the newest state that this rank has got with a reply.

        It is safe from any thread, and communicates nothing.
        """

    @abc.abstractmethod
    def ranks(self) -> int:
        """Return the number of living ranks."""

    @abc.abstractmethod
    def lost(self) -> list[str]:
        """Return the holders that do not live any more."""

    @abc.abstractmethod
    def close(self) -> None:
        """End this rank's part in the ledger. No call may follow."""
