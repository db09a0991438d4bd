"""The batches of a sampler, with an account of what the program has taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from bluecomm.data.stateful_batch_sampler import StatefulBatchSampler


class StaticBatches:
    """Passes batches on from a sampler, and keeps their lengths.

    Args:
        sampler: The sampler.
    """

    def __init__(self, sampler: StatefulBatchSampler) -> None:
        self._sampler = sampler
        # Lengths of the batches that the program has not taken yet.
        self._lengths: deque[int] = deque()
        # Batches of the current pass that the program has taken.
        self._taken = 0

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._sampler.epoch

    @property
    def counted(self) -> int:
        """Raise TypeError, because only a ledger counts the records of all ranks."""
        raise TypeError('DataLoader.counted: only partition="dynamic" counts records')

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch at the next pass, unless it is the same one."""
        if epoch != self.epoch:
            self._taken = 0
            self._sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position behind the last batch that the program has taken."""
        return self._sampler.state_dict(self._taken)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state at the next pass."""
        self._sampler.load_state_dict(state_dict)
        self._taken = 0

    def __len__(self) -> int:
        return len(self._sampler)

    def begin(self) -> None:
        """Begin a pass."""
        self._taken = 0
        self._lengths.clear()

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._sampler:
            self._lengths.append(len(batch))
            yield batch

    def rest(self) -> Iterator[list[int]]:
        """Yield nothing: the workers load all batches."""
        return iter(())

    def finish(self) -> None:
        """Do nothing: a batch that was taken counts as used."""

    def take(self) -> int:
        """Note that the program takes the next batch, and return its length."""
        self._taken += 1
        return self._lengths.popleft()

    def end(self) -> None:
        """Do nothing."""
