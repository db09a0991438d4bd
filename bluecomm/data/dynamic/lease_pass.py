"""One pass of a rank over the records of an epoch, from lease to lease."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from bluecomm.data.dynamic.exchange import Lease
from bluecomm.data.dynamic.intervals import Intervals
from bluecomm.data.dynamic.lease_queue import LeaseQueue
from bluecomm.data.dynamic.lease_records import LeaseRecords


class LeasePass:
    """Turns leases into batches, and notes which of them the program has used.

    Args:
        queue: Fetches the leases. The pass closes it.
        records: Says which records a lease stands for.
        rank: This rank's number, for errors.
        epoch: Number of the epoch.
        user: Name for errors.
    """

    def __init__(
        self, queue: LeaseQueue, records: LeaseRecords, rank: int, epoch: int, user: str
    ) -> None:
        self._queue = queue
        self._records = records
        self._rank = rank
        self._epoch = epoch
        self._user = user
        # Whether this rank knows that the others are in the same epoch.
        self._is_same_epoch = False
        self._ahead: deque[Lease] = deque()
        self._in_use: Lease | None = None

    def pull(self) -> list[int] | None:
        """Return the next batch, or None if nothing may be leased at present.

        Raises:
            ValueError: The ledger belongs to another epoch.
        """
        lease = self._queue.ready()
        if not self._is_same_epoch:
            self._check_epoch(self._queue.epoch())
        return self._to_batch(lease)

    def rest(self) -> Iterator[list[int]]:
        """Yield batches until all records are done, and wait for other ranks.

        It follows a call of ``pull``.
        """
        while (batch := self._to_batch(self._queue.wait())) is not None:
            yield batch

    def finish(self) -> None:
        """Note that the program has used the batch that it has taken, if any."""
        if self._in_use is not None:
            self._queue.finish(self._in_use)
        self._in_use = None

    def take(self) -> int:
        """Note that the program takes the next batch, and return its length."""
        self._in_use = self._ahead.popleft()
        self._queue.prefetch()
        return self._records.count(self._in_use)

    def known(self) -> Intervals:
        """Return the positions that count, as far as this rank has heard."""
        return self._queue.known()

    def done(self) -> Intervals:
        """Ask the ledger for the positions that count."""
        return self._queue.done()

    def end(self) -> Intervals:
        """Give back what the program has not used; return the positions that count."""
        return self._queue.close()

    def _check_epoch(self, found: int) -> None:
        if found != self._epoch:
            raise ValueError(
                f"{self._user}: rank {self._rank} begins epoch {self._epoch}, and "
                f"other ranks have begun epoch {found}; a pass that the program breaks "
                "off is no epoch, so break it off on all ranks, or call set_epoch with "
                "the same number on all ranks before each pass"
            )
        self._is_same_epoch = True

    def _to_batch(self, lease: Lease | None) -> list[int] | None:
        if lease is None:
            return None
        self._ahead.append(lease)
        return self._records.batch(lease)
