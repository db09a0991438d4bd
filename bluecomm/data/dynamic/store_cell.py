"""The ledger in the store through which torch's process groups meet."""

from __future__ import annotations

import json
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from bluecomm.data.dynamic.cell import Cell
from bluecomm.data.dynamic.exchange import LedgerReply, LedgerRequest
from bluecomm.data.dynamic.ledger import LedgerState, RecordLedger
from bluecomm.data.dynamic.store_requests import StoreRequests

_log = logging.getLogger("bluecomm")

# How long rank 0 waits at the end of an epoch until the others have heard of it.
_PARTING_S = 10.0


class StoreCell(Cell):
    """Keeps a ledger as JSON in torch's store, for jobs of ``torch.distributed`` only.

    A rank computes the next state from the one that it knows. The store takes it if no
    other rank has changed the state meanwhile; otherwise the rank tries again with the
    state that it has found. The ledger has a connection of its own, so its requests do
    not wait for other threads. There are no reports of ranks that die; their silence
    shows it. Making the cell asks the store for nothing but a connection.

    The store ends with its process, which is rank 0 unless torchrun starts the job. So
    rank 0 closes its cell at the end of an epoch after the others, or after 10 s. It
    does not wait for ranks whose leases have returned because they were silent.

    Args:
        name: Name of the ledger, the same on all ranks, and used once.
        initial: The ledger with which the pass begins, the same on all ranks.
    """

    def __init__(self, name: str, initial: LedgerState) -> None:
        # Torch has no public name for the store of init_process_group.
        store: Any = _get_default_store()
        # Older versions of torch cannot clone it. Calls of other threads then delay
        # requests.
        own = store.clone() if hasattr(store, "clone") else store
        self._store = PrefixStore("bluecomm.data", own)
        self._name = name
        self._lock = threading.Lock()
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self.holder = str(self._rank)
        self.deadline_s = store.timeout.total_seconds()
        self._requests = StoreRequests()
        self._initial = json.dumps(initial)
        # The newest state that this rank has found in the store.
        self._found = ""

    def call(self, request: LedgerRequest) -> LedgerReply:
        """Carry out a request.

        Raises:
            TimeoutError: The store does not answer, or other ranks have changed the
                ledger at each attempt.
        """
        end = time.monotonic() + self.deadline_s
        with self._lock:
            while True:
                ledger = RecordLedger(self.ledger())
                reply = ledger.apply(request)
                wanted = json.dumps(ledger.state)
                self._replace(wanted)
                if self._found == wanted:
                    return reply
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"DataLoader: rank {self.holder} has not changed the ledger "
                        f"{self._name} within {self.deadline_s:.0f} s, because other "
                        "ranks change it all the time; use larger batches"
                    )

    def ledger(self) -> LedgerState:
        """Return the state after the last request."""
        state: LedgerState = json.loads(self._found or self._initial)
        return state

    def ranks(self) -> int:
        """Return the number of ranks, of which none is known to have died."""
        return self._size

    def lost(self) -> list[str]:
        """Return nobody."""
        return []

    def close(self) -> None:
        """Leave the ledger to the other ranks, and wait for them on rank 0."""
        try:
            self._requests.make(self._part, 2 * _PARTING_S)
        except (RuntimeError, TimeoutError) as error:
            text = "DataLoader: rank %d has not met the others at the end: %s"
            _log.info(text, self._rank, error)
        self._requests.close()

    def _part(self) -> None:
        self._store.set(self._closed_by(self._rank), "")
        ledger = RecordLedger(self.ledger())
        if self._rank == 0 and ledger.is_over:
            others = [
                self._closed_by(rank)
                for rank in range(self._size)
                if str(rank) not in ledger.silent
            ]
            self._store.wait(others, timedelta(seconds=_PARTING_S))

    def _closed_by(self, rank: int) -> str:
        """Return the key that says that a rank has closed its cell."""
        return f"{self._name}.closed.{rank}"

    def _replace(self, wanted: str) -> None:
        """Replace the state if this rank knows it, and find the present one.

        Raises:
            TimeoutError: The store does not answer.
        """

        def compare_set() -> bytes:
            found: bytes = self._store.compare_set(self._name, self._found, wanted)
            return found

        try:
            self._found = self._requests.make(compare_set, self.deadline_s).decode()
        except TimeoutError as error:
            raise TimeoutError(
                f"DataLoader: rank {self.holder} cannot reach the ledger {self._name} "
                f"in the store of torch.distributed: {error}; the process that has the "
                "store (rank 0, unless torchrun starts the job) may have stopped, so "
                "look at its output"
            ) from error
