"""The dynamic partition: batches that ranks lease as they get on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

from bluecomm.data.dynamic.asker import Asker
from bluecomm.data.dynamic.cells import open_cell, serve_ledgers
from bluecomm.data.dynamic.epoch_state import PARTITION, EpochState
from bluecomm.data.dynamic.intervals import Intervals, count
from bluecomm.data.dynamic.lease_pass import LeasePass
from bluecomm.data.dynamic.lease_queue import LeaseQueue
from bluecomm.data.dynamic.lease_records import LeaseRecords
from bluecomm.data.dynamic.ledger import RecordLedger
from bluecomm.data.dynamic.ledger_names import LedgerNames
from bluecomm.data.facts import dataset_facts
from bluecomm.data.permutation import Permutation
from bluecomm.data.world import check_same, data_world

_USER = "DataLoader"


class LeaseBatches:
    """Takes the batches of a rank from the ledger that all ranks share.

    Args:
        dataset: The dataset, as for ``StatefulBatchSampler``.
        batch_size: Records of a batch.
        shuffle: Whether each epoch has a random order of its own.
        seed: Seed of the order, the same on all ranks.
        uneven: Whether ranks may make different numbers of steps.
        lease_s: Seconds after which the leases of a silent rank return.

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
        self._length = len(dataset)
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._uneven = uneven
        self._lease_s = lease_s
        facts, options = dataset_facts(dataset), {"seed": seed, "shuffle": shuffle}
        self._state = EpochState(options, facts, _USER)
        self._names = LedgerNames(_USER)
        self._world = data_world()
        self._pass: LeasePass | None = None
        # The number of positions that count at the end of the last pass.
        self._counted = 0
        others = {
            "partition": PARTITION,
            "batch_size": batch_size,
            "uneven": uneven,
            "lease_s": lease_s,
        }
        check_same(self._world, _USER, {**options, **facts, **others})
        serve_ledgers()

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._state.epoch

    @property
    def counted(self) -> int:
        """Number of records that count in this pass, or in the last one."""
        return self._counted if self._pass is None else count(self._pass.known())

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch at the next pass, unless it is the same one."""
        if epoch != self.epoch:
            self.end()
            self._state.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return what all ranks have finished, as far as this rank knows.

        It asks the ledger, and no other rank. Records that others have not finished
        yet are delivered again after a resume.
        """
        self.finish()
        done = self._state.done if self._pass is None else self._pass.done()
        return self._state.save(done)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state at the next pass, with any number of ranks.

        Raises:
            ValueError: It belongs to another dataset, seed or partition.
        """
        self._state.check(state_dict)
        self.end()
        self._state.load(state_dict)
        self._names.forget()

    def __len__(self) -> int:
        """Return this rank's batches if all ranks are equally fast."""
        left = self._length - count(self._state.begun)
        return -(-left // (self._batch_size * self._world.size))

    def begin(self) -> None:
        """Begin a pass, and end the one before."""
        self.end()
        self._world = data_world()
        done = self._state.begin()
        name = self._names.next(self._world, {"epoch": self.epoch, "done": done})
        order = None
        if self._shuffle:
            order = Permutation(self._length, self._seed, self.epoch)
        self._pass = LeasePass(
            self._open_queue(name, done),
            LeaseRecords(self._length, self._batch_size, self._world, order),
            self._world.rank,
            self.epoch,
            _USER,
        )

    def _open_queue(self, name: str, done: Intervals) -> LeaseQueue:
        initial = RecordLedger.begin(self._length, done, self.epoch).state
        cell = open_cell(self._world, name, initial)
        return LeaseQueue(
            cell,
            Asker(cell, self._batch_size, self._lease_s),
            in_rounds=not self._uneven,
            lease_s=self._lease_s,
            user=_USER,
        )

    def __iter__(self) -> Iterator[list[int]]:
        assert self._pass is not None
        return _Pulls(self._pass)

    def rest(self) -> Iterator[list[int]]:
        """Yield batches until all records are done, and wait for other ranks."""
        assert self._pass is not None
        return self._pass.rest()

    def finish(self) -> None:
        """Note that the program has used the batch that it has taken, if any."""
        if self._pass is not None:
            self._pass.finish()

    def take(self) -> int:
        """Note that the program takes the next batch, and return its length."""
        assert self._pass is not None
        return self._pass.take()

    def end(self) -> None:
        """End the pass, and give back what the program has not used."""
        if self._pass is not None:
            ended, self._pass = self._pass, None
            self._state.done = ended.end()
            self._counted = count(self._state.done)


class _Pulls(Iterator[list[int]]):
    """Batches for torch's loader, which asks again after an end.

    Torch asks for as many batches ahead as its workers may hold, and then once for each
    batch that the program takes. When the ledger grants nothing because this rank holds
    enough, torch is told that there is no more. So it never waits for what the program
    has to finish first, and it holds fewer batches towards the end of an epoch.
    """

    def __init__(self, leases: LeasePass) -> None:
        self._leases = leases

    def __next__(self) -> list[int]:
        batch = self._leases.pull()
        if batch is None:
            raise StopIteration
        return batch
