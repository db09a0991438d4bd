"""The dynamic partition: batches that ranks lease as they get on."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sized
from typing import Any

from bluecomm.data.dynamic.asker import Asker
from bluecomm.data.dynamic.cells import open_cell, serve_ledgers
from bluecomm.data.dynamic.exchange import Lease
from bluecomm.data.dynamic.intervals import Intervals, count
from bluecomm.data.dynamic.lease_queue import LeaseQueue
from bluecomm.data.dynamic.lease_records import LeaseRecords
from bluecomm.data.dynamic.ledger import RecordLedger
from bluecomm.data.facts import dataset_facts, differences
from bluecomm.data.permutation import Permutation
from bluecomm.data.world import check_same, data_world

_USER = "DataLoader"
_KEYS = {"epoch", "seed", "shuffle", "dataset", "partition", "done"}
_PARTITION = "dynamic"


class LeaseBatches:
    """Takes the batches of a rank from the ledger that all ranks share.

    Args:
        dataset: The dataset, as for ``StatefulBatchSampler``.
        batch_size: Records of a batch.
        shuffle: Whether each epoch has a random order of its own.
        seed: Seed of the order, the same on all ranks.
        uneven: Whether ranks may make different numbers of steps.
        lease_s: Seconds after which the leases of a silent rank return.

    Attributes:
        epoch: Number of the epoch.

    Raises:
        TypeError: The dataset has no length.
        ValueError: The ranks have different datasets or options, or an option is not
            possible.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        uneven: bool,
        lease_s: float,
    ) -> None:
        if not isinstance(dataset, Sized):
            raise TypeError(
                f"{_USER}: the dataset ({type(dataset).__name__}) has no length; pass "
                "one with __len__"
            )
        if batch_size < 1 or lease_s <= 0:
            raise ValueError(
                f"{_USER}: expected a batch_size of at least 1 and a positive lease_s, "
                f"got batch_size={batch_size} and lease_s={lease_s}"
            )
        self.epoch = 0
        self._length = len(dataset)
        self._batch_size = batch_size
        self._uneven = uneven
        self._lease_s = lease_s
        self._facts = {"seed": seed, "shuffle": shuffle}
        self._dataset = dataset_facts(dataset)
        # The positions that count before the next pass, or since the last one.
        self._done: Intervals = []
        # The number of those that count at the end of the last pass.
        self._counted = 0
        self._is_kept = False
        # The passes since all ranks have last agreed on the name of their ledgers.
        self._agreed: object = None
        self._token = ""
        self._passes = 0
        self._world = data_world()
        self._queue: LeaseQueue | None = None
        self._records: LeaseRecords | None = None
        # Whether this rank knows that the others are in the same epoch.
        self._is_same_epoch = False
        self._ahead: deque[Lease] = deque()
        self._in_use: Lease | None = None
        options = {
            "partition": _PARTITION,
            "batch_size": batch_size,
            "uneven": uneven,
            "lease_s": lease_s,
        }
        check_same(self._world, _USER, {**self._facts, **self._dataset, **options})
        serve_ledgers()

    @property
    def counted(self) -> int:
        """Number of records that count in this pass, or in the last one."""
        return self._counted if self._queue is None else count(self._queue.known())

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch at the next pass, unless it is the same one."""
        if epoch != self.epoch:
            self.end()
            self.epoch, self._done, self._is_kept = epoch, [], False

    def state_dict(self) -> dict[str, Any]:
        """Return what all ranks have finished, as far as this rank knows.

        It asks the ledger, and no other rank. Records that others have not finished
        yet are delivered again after a resume.
        """
        self.finish()
        done = self._done if self._queue is None else self._queue.done()
        return {
            "epoch": self.epoch,
            **self._facts,
            "dataset": dict(self._dataset),
            "partition": _PARTITION,
            "done": [list(each) for each in done],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state at the next pass, with any number of ranks.

        Raises:
            ValueError: It belongs to another dataset, seed or partition.
        """
        if set(state_dict) != _KEYS:
            raise ValueError(
                f"{_USER}.load_state_dict: expected a state of partition="
                f'"{_PARTITION}" with the keys {sorted(_KEYS)}, got '
                f"{sorted(state_dict)}; begin a new epoch without this state, or pass "
                "the partition with which it was saved"
            )
        mine = {**self._facts, **self._dataset}
        theirs = {key: state_dict[key] for key in self._facts}
        if found := differences({**theirs, **state_dict["dataset"]}, mine):
            raise ValueError(
                f"{_USER}.load_state_dict: the state belongs to other data: {found}; "
                "pass the same dataset and options, or begin a new epoch without this "
                "state"
            )
        self.end()
        self.epoch = state_dict["epoch"]
        self._done = [list(each) for each in state_dict["done"]]
        self._is_kept, self._agreed = True, None

    def __len__(self) -> int:
        """Return this rank's batches if all ranks are equally fast."""
        begun = self._done if self._is_kept else []
        left = self._length - count(begun)
        return -(-left // (self._batch_size * self._world.size))

    def begin(self) -> None:
        """Begin a pass, and end the one before."""
        self.end()
        if not self._is_kept:
            self._done = []
        self._is_kept = False
        self._world = data_world()
        self._agree()
        self._passes += 1
        self._is_same_epoch = False
        order = None
        if self._facts["shuffle"]:
            order = Permutation(self._length, self._facts["seed"], self.epoch)
        self._records = LeaseRecords(self._length, self._batch_size, self._world, order)
        initial = RecordLedger.begin(self._length, self._done, self.epoch).state
        cell = open_cell(self._world, f"{self._token}.{self._passes}", initial)
        self._queue = LeaseQueue(
            cell,
            Asker(cell, self._batch_size, self._lease_s),
            in_rounds=not self._uneven,
            lease_s=self._lease_s,
            user=_USER,
        )

    def __iter__(self) -> Iterator[list[int]]:
        return _Pulls(self)

    def pull(self) -> list[int] | None:
        """Return the next batch, or None if nothing may be leased at present.

        Raises:
            ValueError: The ledger belongs to another epoch.
        """
        assert self._queue is not None
        lease = self._queue.ready()
        if not self._is_same_epoch:
            self._check_epoch(self._queue.epoch())
        return self._to_batch(lease)

    def rest(self) -> Iterator[list[int]]:
        """Yield batches until all records are done, and wait for other ranks.

        It follows a call of ``pull``.
        """
        assert self._queue is not None
        while (batch := self._to_batch(self._queue.wait())) is not None:
            yield batch

    def finish(self) -> None:
        """Note that the program has used the batch that it has taken, if any."""
        if self._in_use is not None and self._queue is not None:
            self._queue.finish(self._in_use)
        self._in_use = None

    def take(self) -> int:
        """Note that the program takes the next batch, and return its length."""
        assert self._queue is not None
        assert self._records is not None
        self._in_use = self._ahead.popleft()
        self._queue.prefetch()
        return self._records.count(self._in_use)

    def end(self) -> None:
        """End the pass, and give back what the program has not used."""
        self._ahead.clear()
        self._in_use = None
        if self._queue is not None:
            queue, self._queue = self._queue, None
            self._done = queue.close()
            self._counted = count(self._done)

    def _agree(self) -> None:
        """Check that all ranks begin alike, and agree on a name for their ledgers."""
        if self._agreed is self._world.identity and self._token:
            return
        facts = {"epoch": self.epoch, "done": self._done}
        check_same(self._world, f"{_USER}.load_state_dict", facts)
        token = secrets.token_hex(8)
        self._token = self._world.gather(token, f"{_USER}.ledger")[0]
        self._agreed, self._passes = self._world.identity, 0

    def _check_epoch(self, found: int) -> None:
        if found != self.epoch:
            raise ValueError(
                f"{_USER}: rank {self._world.rank} begins epoch {self.epoch}, and "
                f"other ranks have begun epoch {found}; a pass that the program breaks "
                "off is no epoch, so break it off on all ranks, or call set_epoch with "
                "the same number on all ranks before each pass"
            )
        self._is_same_epoch = True

    def _to_batch(self, lease: Lease | None) -> list[int] | None:
        if lease is None:
            return None
        assert self._records is not None
        self._ahead.append(lease)
        return self._records.batch(lease)


class _Pulls(Iterator[list[int]]):
    """Batches for torch's loader, which asks again after an end.

    Torch asks for as many batches ahead as its workers may hold, and then once for each
    batch that the program takes. When the ledger grants nothing because this rank holds
    enough, torch is told that there is no more. So it never waits for what the program
    has to finish first, and it holds fewer batches towards the end of an epoch.
    """

    def __init__(self, batches: LeaseBatches) -> None:
        self._batches = batches

    def __next__(self) -> list[int]:
        batch = self._batches.pull()
        if batch is None:
            raise StopIteration
        return batch
