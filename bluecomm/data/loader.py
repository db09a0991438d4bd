"""Torch's data loader with defaults for many ranks."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from bluecomm.basics import is_initialized
from bluecomm.data.cores import worker_count
from bluecomm.data.distributed_batch_sampler import DistributedBatchSampler
from bluecomm.data.load_balancing import LoadBalancingSampler
from bluecomm.data.permutation import mix
from bluecomm.data.progress_bar import Advance, progress_bar
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

    * the batches are those of a ``DistributedBatchSampler``, or of another batch
      sampler of ``bluecomm.data``;
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
        num_workers: Number of worker processes. Default: see above.
        pin_memory: Whether to copy tensors into pinned memory. Default: see above.
        progress: Whether rank 0 shows a progress bar on its terminal, with the samples
            per second of all ranks.
        options: Further arguments of torch's loader.

    Raises:
        TypeError: The dataset has no length, the batch sampler is not one of
            ``bluecomm.data``, or arguments exclude each other.
        ValueError: The ranks have different datasets or options.
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
        num_workers: int | None = None,
        pin_memory: bool | None = None,
        progress: bool = False,
        **options: Any,
    ) -> None:
        given = {"batch_size": batch_size, "shuffle": shuffle}
        given |= {"drop_last": drop_last, "pad": pad}
        chosen: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        _check(batch_sampler, chosen, options)
        if batch_sampler is None:
            chosen.setdefault("batch_size", 1)
            batch_sampler = DistributedBatchSampler(dataset, seed=seed, **chosen)
        self._batches = _Batches(batch_sampler)
        self._seed = seed
        self._progress = progress
        # Batches of the current pass that the program has taken.
        self._taken = 0
        self._passes = 0
        if num_workers is None:
            num_workers = worker_count(data_world())
        if pin_memory is None:
            pin_memory = torch.cuda.is_available()
        super().__init__(
            dataset,
            batch_sampler=self._batches,
            num_workers=num_workers,
            pin_memory=pin_memory,
            generator=torch.Generator(),
            **options,
        )

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._batches.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch at the next pass. Does nothing if it is the same one.

        Args:
            epoch: Number of the epoch.
        """
        if epoch != self.epoch:
            self._taken = 0
            self._batches.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position behind the last batch that the program has taken."""
        return self._batches.sampler.state_dict(self._taken)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state at the next pass, with any number of ranks and workers.

        Args:
            state_dict: A value of ``state_dict``, the same on all ranks.

        Raises:
            ValueError: It belongs to another dataset, seed or class.
        """
        self._batches.sampler.load_state_dict(state_dict)
        self._taken = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        world = data_world()
        self._taken = 0
        self._passes += 1
        self._batches.lengths.clear()
        assert self.generator is not None
        key = mix(mix((self._seed + (self.epoch << 32)) % 2**64) ^ world.rank)
        self.generator.manual_seed(key)
        is_shown = self._progress and world.rank == 0
        with progress_bar(self.epoch, len(self), world.size, is_shown) as advance:
            yield from self._measured(super().__iter__(), advance)
        self.set_epoch(self.epoch + 1)

    def _measured(self, batches: Iterator[Any], advance: Advance) -> Iterator[Any]:
        """Yield all batches, and count them and the waits for them.

        Raises:
            RuntimeError: Another pass has begun.
        """
        number = self._passes
        while True:
            if number != self._passes:
                raise RuntimeError(
                    "DataLoader: another pass over this loader has begun, and its "
                    "state counts the batches of one pass; use one loader for each of "
                    "two passes at a time"
                )
            began = time.perf_counter()
            with _in_timeline():
                batch = next(batches, self)
            if batch is self:
                return
            wait_s = time.perf_counter() - began
            samples = self._batches.lengths.popleft()
            self._taken += 1
            if is_initialized():
                current_communicator().world.input_waits.add(samples, wait_s)
            advance(samples, wait_s)
            yield batch


class _Batches:
    """Passes batches on from a sampler, and keeps their lengths.

    Attributes:
        sampler: The sampler.
        lengths: Lengths of the batches that the program has not taken yet.
    """

    def __init__(self, sampler: StatefulBatchSampler) -> None:
        self.sampler = sampler
        self.lengths: deque[int] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.sampler:
            self.lengths.append(len(batch))
            yield batch

    def __len__(self) -> int:
        return len(self.sampler)


def _check(
    batch_sampler: StatefulBatchSampler | None,
    chosen: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Raise TypeError if arguments exclude each other."""
    for name in ("sampler", "generator"):
        if name in options:
            raise TypeError(
                f"DataLoader: {name} cannot be passed; pass a batch_sampler of "
                "bluecomm.data and a seed"
            )
    if options.get("in_order") is False:
        raise TypeError(
            "DataLoader: in_order=False is not possible, because a state counts the "
            "batches in their order"
        )
    if batch_sampler is None:
        return
    is_single = isinstance(batch_sampler, LoadBalancingSampler)
    if is_single or not isinstance(batch_sampler, StatefulBatchSampler):
        raise TypeError(
            "DataLoader: expected a batch_sampler of bluecomm.data, got "
            f"{type(batch_sampler).__name__}; use torch's DataLoader with this one"
        )
    if chosen:
        raise TypeError(
            f"DataLoader: {', '.join(sorted(chosen))} cannot be passed with a "
            "batch_sampler; pass them to the sampler"
        )


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
