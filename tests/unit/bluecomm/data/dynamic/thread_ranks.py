"""Ranks that are threads of one process and share ledgers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from bluecomm.data.dynamic.local_cell import LocalCell
from bluecomm.data.world import DataWorld
from tests.support.deadlines import DEADLINE_S


class ThreadRanks:
    """Replaces the world and the cells of the loader in this process.

    Attributes:
        lost: Ranks that are lost.
        cells: Name to the cell that keeps the ledger.
    """

    def __init__(self, monkeypatch, size):
        self.size = size
        self.lost = []
        self.cells = {}
        self.deadline_s = DEADLINE_S
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(size, timeout=DEADLINE_S)
        self._gathered = [None] * size
        self._here = threading.local()
        for module in ("loader", "dynamic.lease_batches"):
            monkeypatch.setattr(f"bluecomm.data.{module}.data_world", self._world)
        monkeypatch.setattr(
            "bluecomm.data.dynamic.lease_batches.open_cell", self._open_cell
        )

    def run(self, body):
        """Return what ``body(rank)`` returns on each rank."""

        def run_one(rank):
            self._here.rank = rank
            return body(rank)

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(run_one, range(self.size), timeout=DEADLINE_S))

    def meet(self):
        """Wait for all ranks, as a collective operation does."""
        self._barrier.wait()

    def _world(self):
        return _ThreadWorld(self, self._here.rank)

    def gather(self, rank, value):
        self._gathered[rank] = value
        self.meet()
        values = list(self._gathered)
        self.meet()
        return values

    def _open_cell(self, world, name, initial):
        with self._lock:
            shared = self.cells.setdefault(name, LocalCell(initial))
        return _SharedCell(self, shared, str(world.rank))


class _ThreadWorld(DataWorld):
    def __init__(self, ranks, rank):
        super().__init__(rank, ranks.size, ranks)
        self._ranks = ranks

    def gather(self, value, name):
        return self._ranks.gather(self.rank, value)


class _SharedCell:
    def __init__(self, ranks, shared, holder):
        self._ranks = ranks
        self.holder = holder
        self.deadline_s = ranks.deadline_s
        self.call = self.tell = shared.call
        self.ledger = shared.ledger

    def ranks(self):
        return self._ranks.size - len(self._ranks.lost)

    def lost(self):
        return [str(rank) for rank in self._ranks.lost]

    def close(self):
        pass
