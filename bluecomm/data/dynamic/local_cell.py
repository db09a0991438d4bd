"""The ledger of a rank that shares its data with nobody."""

from __future__ import annotations

import copy
import math
import threading

from bluecomm.data.dynamic.cell import Cell
from bluecomm.data.dynamic.exchange import LedgerReply, LedgerRequest
from bluecomm.data.dynamic.ledger import LedgerState, RecordLedger


class LocalCell(Cell):
    """Keeps a ledger in this process.

    Args:
        initial: The ledger with which the pass begins.
    """

    holder = "0"
    deadline_s = math.inf

    def __init__(self, initial: LedgerState) -> None:
        self._lock = threading.Lock()
        self._ledger = RecordLedger(copy.deepcopy(initial))

    def call(self, request: LedgerRequest) -> LedgerReply:
        """Carry out a request."""
        with self._lock:
            return self._ledger.apply(request)

    def ledger(self) -> LedgerState:
        """Return a copy of the state."""
        with self._lock:
            return copy.deepcopy(self._ledger.state)

    def ranks(self) -> int:
        """Return 1."""
        return 1

    def lost(self) -> list[str]:
        """Return nobody."""
        return []

    def close(self) -> None:
        """Do nothing."""
