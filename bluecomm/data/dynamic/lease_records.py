"""The records of leases in the order of an epoch."""

from __future__ import annotations

import numpy as np

from bluecomm.data.dynamic.exchange import Lease
from bluecomm.data.permutation import Indices, Permutation
from bluecomm.data.world import DataWorld


class LeaseRecords:
    """Says which records of the dataset the leases of a rank stand for.

    A lease has positions in the order of the epoch. One that repeats records has none;
    the number of its step and the rank say which records it repeats.

    Args:
        length: Number of records.
        batch_size: Records of a batch.
        world: The ranks.
        order: The order of the epoch; None for that of the dataset.
    """

    def __init__(
        self, length: int, batch_size: int, world: DataWorld, order: Permutation | None
    ) -> None:
        self._length = length
        self._batch_size = batch_size
        self._world = world
        self._order = order

    def batch(self, lease: Lease) -> list[int]:
        """Return the indices of a lease's records in the dataset."""
        positions = self._positions(lease)
        if self._order is not None:
            positions = self._order.at(positions)
        indices: list[int] = positions.tolist()
        return indices

    def count(self, lease: Lease) -> int:
        """Return the number of a lease's records."""
        return len(self._positions(lease))

    def _positions(self, lease: Lease) -> Indices:
        if lease["id"] is not None:
            return np.concatenate([np.arange(*each) for each in lease["intervals"]])
        assert lease["round"] is not None
        step = lease["round"] * self._world.size + self._world.rank
        first = step * self._batch_size
        return np.arange(first, first + self._batch_size) % self._length
