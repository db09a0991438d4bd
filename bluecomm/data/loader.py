"""Torch's data loader with defaults for many ranks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from bluecomm.basics import is_initialized
from bluecomm.data.cores import worker_count
from bluecomm.data.loader_arguments import check_arguments, make_source
from bluecomm.data.permutation import mix
from bluecomm.data.progress import Advance, show_progress
from bluecomm.data.stateful_batch_sampler import StatefulBatchSampler
from bluecomm.data.world import data_world
from bluecomm.runtime import current_communicator

_ROW = "data"
_ACTIVITY = "wait for data"


class DataLoader(TorchDataLoader[Any]):
    """Loads this rank's batches of a dataset, with torch's own loader.

    ::

        loader = bf.data.DataLoader(dataset, batch_size=32)
        for epoch in range(10):
            for images, labels in loader: ...

    It differs from ``torch.utils.data.DataLoader`` in its defaults:

    * the batches are those of a ``DistributedBatchSampler``, of another batch sampler
      of ``bluecomm.data``, or leases of the dynamic partition;
    * each full pass begins another epoch, without ``set_epoch``;
    * as many workers as the rank has cores to spare, at most 8;
    * pinned memory if there is a GPU;
    * workers of different ranks and epochs have different random numbers;
    * ``state_dict`` counts the batches that the program has taken, not those that
      workers have taken ahead;
    * the waits for data are in ``bf.stats().input``, and in the timeline in the row
      ``data``.

    Args:
        dataset: The dataset, map-style, the same on all ranks.
        batch_size: Samples of a rank in a step. Default: 1, without ``batch_sampler``.
        batch_sampler: A batch sampler of ``bluecomm.data``, in place of ``batch_size``,
            ``shuffle``, ``drop_last`` and ``pad``.
        shuffle: Whether each epoch has a random order of its own.
        seed: Seed of the order and of the workers, the same on all ranks.
        drop_last: As for ``DistributedBatchSampler``.
        pad: As for ``DistributedBatchSampler``.
        partition: ``"static"``, or ``"dynamic"``: ranks lease the records of their next
            batches as they go. If a rank is lost, the others use its records. It is
            not deterministic which rank uses which record.
        uneven: With the dynamic partition, whether fast ranks make more steps, for
            algorithms in which no rank waits for another one. Default: all ranks make
            equally many steps; a few at the end may repeat records.
        lease_s: With the dynamic partition, seconds after which the records of a rank
            that is silent are leased to others. Default: 30.
        num_workers: Number of worker processes. Default: see above.
        pin_memory: Whether to copy tensors into pinned memory. Default: see above.
        progress: Whether rank 0 shows a progress bar with the samples per second of all
            ranks. If its standard error is no terminal, such as with ``bfrun``, it
            prints a line every 10 s and at the end of an epoch.
        options: Further arguments of torch's loader.

    Raises:
        TypeError: The dataset has no length, the batch sampler is not one of
            ``bluecomm.data``, or arguments exclude each other.
        ValueError: The ranks have different datasets or options, or an option is not
            possible.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        batch_sampler: StatefulBatchSampler | None = None,
        shuffle: bool | None = None,
        seed: int = 0,
        drop_last: bool | None = None,
        pad: bool | None = None,
        partition: Literal["static", "dynamic"] = "static",
        uneven: bool | None = None,
        lease_s: float | None = None,
        num_workers: int | None = None,
        pin_memory: bool | None = None,
        progress: bool = False,
        **options: Any,
    ) -> None:
        given: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle}
        given |= {"drop_last": drop_last, "pad": pad}
        given |= {"uneven": uneven, "lease_s": lease_s}
        chosen = {k: v for k, v in given.items() if v is not None}
        check_arguments(partition, batch_sampler, chosen, options)
        self._source = make_source(dataset, partition, batch_sampler, seed, chosen)
        self._seed = seed
        self._progress = progress
        self._passes = 0
        if num_workers is None:
            num_workers = worker_count(data_world())
        if pin_memory is None:
            pin_memory = torch.cuda.is_available()
        super().__init__(
            dataset,
            batch_sampler=self._source,
            num_workers=num_workers,
            pin_memory=pin_memory,
            generator=torch.Generator(),
            **options,
        )

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._source.epoch

    @property
    def counted(self) -> int:
        """Number of records that all ranks together have used, each counted once.

        It is the number in this pass, as far as this rank knows, or in the last one. At
        the end of a pass it is the length of the dataset. Only the dynamic partition
        counts records.

        Raises:
            TypeError: The partition is static.
        """
        return self._source.counted

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch at the next pass. Does nothing if it is the same one.

        Args:
            epoch: Number of the epoch.
        """
        if epoch != self.epoch:
            self._passes += 1  # ends the present one
        self._source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position behind the last batch that the program has taken.

        With the dynamic partition it is what all ranks have used, as far as the ledger
        knows, so the values of ranks differ: load one of them on all ranks.
        """
        return self._source.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state at the next pass, with any number of ranks and workers.

        Args:
            state_dict: A value of ``state_dict``, the same on all ranks.

        Raises:
            ValueError: It belongs to another dataset, seed, class or partition.
        """
        self._source.load_state_dict(state_dict)
        self._passes += 1  # ends the present one

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        world = data_world()
        self._passes += 1
        steps = len(self)
        self._source.begin()
        assert self.generator is not None
        key = mix(mix((self._seed + (self.epoch << 32)) % 2**64) ^ world.rank)
        self.generator.manual_seed(key)
        is_shown = self._progress and world.rank == 0
        number = self._passes
        try:
            with show_progress(self.epoch, steps, world.size, is_shown) as advance:
                yield from self._measured(self._load(), advance)
        finally:
            # Another pass has ended this one when it began.
            if number == self._passes:
                self._source.end()
        self.set_epoch(self.epoch + 1)

    def _load(self) -> Iterator[Any]:
        """Yield what the workers load, and load the rest in this process."""
        yield from super().__iter__()
        yield from TorchDataLoader(
            self.dataset,
            batch_sampler=self._source.rest(),
            num_workers=0,
            collate_fn=self.collate_fn,
            pin_memory=self.pin_memory,
            generator=self.generator,
        )

    def _measured(self, batches: Iterator[Any], advance: Advance) -> Iterator[Any]:
        """Yield all batches, and count them and the waits for them.

        Raises:
            RuntimeError: Another pass has begun, or the program has set the epoch or
                loaded a state.
        """
        number = self._passes
        while True:
            if number != self._passes:
                raise RuntimeError(
                    "DataLoader: another pass over this loader has begun, or "
                    "set_epoch or load_state_dict has ended this one; begin a new "
                    "pass, or use one loader for each of two passes at a time"
                )
            self._source.finish()
            began = time.perf_counter()
            with _in_timeline():
                batch = next(batches, self)
            if batch is self:
                return
            wait_s = time.perf_counter() - began
            samples = self._source.take()
            if is_initialized():
                current_communicator().world.input_waits.add(samples, wait_s)
            advance(samples, wait_s)
            yield batch


@contextlib.contextmanager
def _in_timeline() -> Iterator[None]:
    """Record the wait in the timeline, if there is one."""
    world = current_communicator().world if is_initialized() else None
    if world is None or world.recorder is None:
        yield
        return
    world.recorder.begin(_ACTIVITY, _ROW)
    try:
        yield
    finally:
        world.recorder.end(_ROW)
