"""Writes a rank's requests to the ledger, and watches for silent ranks."""

from __future__ import annotations

import time
from collections.abc import Callable

from bluecomm.data.dynamic.cell import Cell
from bluecomm.data.dynamic.exchange import LedgerReply, LedgerRequest


class Asker:
    """Numbers the requests of a rank, for one thread.

    A holder counts as silent if the number of its last request has not changed for
    ``lease_s``. Each rank measures this with its own clock, so clocks need not agree. A
    rank that was stopped itself reports an outdated number, which the ledger ignores.

    Args:
        cell: The ledger.
        batch_size: Records of a lease.
        lease_s: Seconds after which the leases of a silent rank return.
        clock: Returns seconds that never go back.
    """

    def __init__(
        self,
        cell: Cell,
        batch_size: int,
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cell = cell
        self._batch_size = batch_size
        self._lease_s = lease_s
        self._clock = clock
        self._number = 0
        # Other holders: the number of their last request, and since when it is known.
        self._seen: dict[str, tuple[int, float]] = {}

    def ask(
        self,
        *,
        finished: list[int],
        wants: bool = False,
        round_number: int | None = None,
    ) -> LedgerReply:
        """Send a request, and return the reply."""
        now = self._clock()
        silent = {
            holder: number
            for holder, (number, since) in self._seen.items()
            if now - since > self._lease_s
        }
        request: LedgerRequest = {
            "holder": self._cell.holder,
            "number": self._next_number(),
            "finished": finished,
            "wants": wants,
            "round": round_number,
            "ranks": self._cell.ranks(),
            "batch_size": self._batch_size,
            "lost": self._cell.lost(),
            "silent": silent,
        }
        reply = self._cell.call(request)
        now = self._clock()
        seen = {}
        for holder, number in reply["holding"].items():
            known = self._seen.get(holder)
            if holder != self._cell.holder:
                is_same = known is not None and known[0] == number
                seen[holder] = known if known and is_same else (number, now)
        self._seen = seen
        return reply

    def leave(self) -> None:
        """Give back all leases with the rank's last request."""
        number = self._next_number()
        self._cell.tell({"holder": self._cell.holder, "number": number, "leaves": True})

    def _next_number(self) -> int:
        self._number += 1
        return self._number
