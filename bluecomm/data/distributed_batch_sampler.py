"""The static partition: batches of equal number on all ranks."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from bluecomm.data.permutation import Indices
from bluecomm.data.remaining import Remaining
from bluecomm.data.stateful_batch_sampler import Phase, StatefulBatchSampler
from bluecomm.data.steps import EqualSteps, Steps


class DistributedBatchSampler(StatefulBatchSampler):
    """Deals each epoch's random order to the ranks, in batches of equal number.

    ::

        sampler = bf.data.DistributedBatchSampler(dataset, batch_size=32)
        loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for batch in loader: ...

    The order is a keyed permutation of the samples' numbers, which is computed where it
    is needed, so memory and time before the first batch do not depend on the length. A
    step uses ``ranks * batch_size`` consecutive positions, which the ranks take in
    turn. Each sample is used exactly once per epoch, and all ranks make equally many
    steps.

    Args:
        dataset: The dataset, of which the length counts, and its ``fingerprint()`` if
            it has one. They must be the same on all ranks.
        batch_size: Samples of a rank in a step. In the last step ranks may have fewer,
            or one more, and their numbers differ by one at most.
        shuffle: Whether each epoch has a random order of its own.
        seed: Seed of the order, the same on all ranks.
        drop_last: Whether to leave out what does not fill a step of all ranks.
        pad: Whether the last step is filled up with repeats, so that all ranks have the
            same number of samples.
        rank: Number of this rank. Default: that in bluecomm's job, otherwise in
            ``torch.distributed``, otherwise 0.
        num_replicas: Number of ranks, given together with ``rank``. Default: as there.

    Raises:
        TypeError: ``dataset`` has no length.
        ValueError: The ranks have different datasets or options, or an option is not
            possible.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        pad: bool = False,
        rank: int | None = None,
        num_replicas: int | None = None,
    ) -> None:
        check_batch_options(type(self).__name__, batch_size, drop_last, pad)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.pad = pad
        super().__init__(
            dataset, shuffle=shuffle, seed=seed, rank=rank, num_replicas=num_replicas
        )

    def _find_layout(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "pad": self.pad,
        }

    def _make_steps(self, remaining: Remaining, phase: Phase) -> Steps:
        return EqualSteps(
            remaining,
            phase["ranks"],
            phase["batch_size"],
            drop_last=phase["drop_last"],
            pad=phase["pad"],
        )

    def _deal(self, steps: Steps, step: int, rank: int, ranks: int) -> Indices:
        return self._to_indices(steps.positions(step)[rank::ranks])


def check_batch_options(user: str, batch_size: int, drop_last: bool, pad: bool) -> None:
    """Raise ValueError if the options of a batch sampler are not possible."""
    if batch_size < 1:
        raise ValueError(
            f"{user}: expected a batch_size of at least 1, got {batch_size}"
        )
    if drop_last and pad:
        raise ValueError(
            f"{user}: drop_last leaves samples out and pad repeats some; pass one of "
            "them"
        )
