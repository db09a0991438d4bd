"""Batches and samples of uneven cost, of which each rank gets nearly the same."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sized
from typing import Any

import numpy as np

from bluecomm.data.balance import Costs, assign, split_by_cost, split_by_count
from bluecomm.data.budget_steps import BudgetSteps
from bluecomm.data.costs import Cost, digest, find_costs
from bluecomm.data.distributed_batch_sampler import check_batch_options
from bluecomm.data.permutation import Indices
from bluecomm.data.remaining import Remaining
from bluecomm.data.sorted_steps import SortedSteps
from bluecomm.data.stateful_batch_sampler import Phase, StatefulBatchSampler
from bluecomm.data.steps import EqualSteps, Steps
from bluecomm.data.world import check_same

# Steps over which totals of the ranks are balanced together.
_BLOCK = 64


class LoadBalancingBatchSampler(StatefulBatchSampler):
    """Gives all ranks batches of nearly equal cost in each step.

    ::

        sampler = bf.data.LoadBalancingBatchSampler(
            dataset, batch_size=32, cost=lambda sample: len(sample["tokens"])
        )
        loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler)

    The samples of a step are those of ``DistributedBatchSampler``: consecutive ones of
    a random order. So which samples meet in a step depends on no cost. Only which rank
    takes which is chosen by cost. Each sample is used exactly once per epoch, and all
    ranks make equally many steps.

    If the costs of a step's samples lie between ``c_min`` and ``c_max``, and all ranks
    have as many, two batches differ by at most ``c_max - c_min``, and typically by much
    less (``bluecomm.data.balance.split_by_count`` has the proof). The totals of two
    ranks over 64 steps differ by at most the largest difference within one of them. So
    the *relative* difference of totals is, in the worst case, that of one step divided
    by the number of steps.

    Args:
        dataset: The dataset, the same on all ranks.
        batch_size: Samples of a rank in a step. In the last step ranks may have fewer,
            or one more, and their numbers differ by one at most.
        cost: Function that returns the cost of a sample ``dataset[i]``, or the costs of
            all samples. The ranks call the function once for each sample, in parallel.
        max_cost: In place of ``batch_size``: what the samples of a batch cost together
            at most, a number of tokens for example. Batches then have any size. At the
            end of an epoch, if there is no other way to have equally many batches, the
            last ones may hold one sample too much.
        window: Steps whose samples are sorted by cost together, so that a batch has
            samples of similar length. A sample is used at most ``window - 1`` steps
            earlier or later than in the random order. Default: no sorting.
        shuffle: Whether each epoch has a random order of its own.
        seed: Seed of the order, the same on all ranks.
        drop_last: Whether to leave out what does not fill a step of all ranks. These
            are random samples, not those of the highest cost.
        pad: Whether the last step is filled up with repeats, so that all ranks have the
            same number of samples.
        cost_file: File in which rank 0 keeps the costs for other runs.
        rank: Number of this rank. Default: that in bluecomm's job, otherwise in
            ``torch.distributed``, otherwise 0.
        num_replicas: Number of ranks, given together with ``rank``. Default: as there.

    Raises:
        TypeError: ``dataset`` has no length, or not exactly one of ``batch_size`` and
            ``max_cost`` is given.
        ValueError: The ranks have different datasets, costs or options, an option is
            not possible, or a sample costs more than ``max_cost``.
        RuntimeError: ``cost`` has raised, or a cost is negative or not finite. The text
            names the rank and the sample, and all ranks raise.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int | None = None,
        *,
        cost: Cost,
        max_cost: float | None = None,
        window: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        pad: bool = False,
        cost_file: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        num_replicas: int | None = None,
    ) -> None:
        user = type(self).__name__
        if (batch_size is None) == (max_cost is None):
            raise TypeError(f"{user}: pass either batch_size or max_cost")
        check_batch_options(user, batch_size or 1, drop_last, pad)
        if window < 1 or (window > 1 and max_cost is not None):
            raise ValueError(
                f"{user}: expected a window of at least 1, and of 1 with max_cost, got "
                f"{window}"
            )
        self.batch_size = batch_size
        self.max_cost = max_cost
        self.window = window
        self.drop_last = drop_last
        self.pad = pad
        super().__init__(
            dataset, shuffle=shuffle, seed=seed, rank=rank, num_replicas=num_replicas
        )
        self._costs = find_costs(
            dataset,
            cost,
            world=self._world(),
            user=user,
            facts=self._dataset,
            file=cost_file,
        )
        self._dataset["costs"] = digest(self._costs)
        check_same(self._world(), user, {"costs": self._dataset["costs"]})
        self._check_max_cost()
        # The steps, block and samples of the last block that was dealt.
        self._dealt: tuple[Steps, int, list[list[Indices]]] | None = None

    @property
    def costs(self) -> Costs:
        """The cost of each sample."""
        return self._costs

    def _check_max_cost(self) -> None:
        if self.max_cost is None or not len(self._costs):
            return
        largest = int(self._costs.argmax())
        if self._costs[largest] > self.max_cost:
            raise ValueError(
                f"{self._user}: sample {largest} costs {self._costs[largest]:g}, more "
                f"than max_cost={self.max_cost:g}; raise max_cost, or leave the sample "
                "out of the dataset"
            )

    def _find_layout(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "max_cost": self.max_cost,
            "window": self.window,
            "drop_last": self.drop_last,
            "pad": self.pad,
        }

    def _make_steps(self, remaining: Remaining, phase: Phase) -> Steps:
        ends = {"drop_last": phase["drop_last"], "pad": phase["pad"]}
        ranks = phase["ranks"]
        if phase["max_cost"] is not None:
            return BudgetSteps(
                remaining, ranks, phase["max_cost"], self._costs_at, **ends
            )
        equal = EqualSteps(remaining, ranks, phase["batch_size"], **ends)
        if phase["window"] == 1:
            return equal
        key = self._seed, self.epoch
        return SortedSteps(equal, phase["window"], self._costs_at, key)

    def _costs_at(self, positions: Indices) -> Costs:
        found: Costs = self._costs[self._to_indices(positions)]
        return found

    def _deal(self, steps: Steps, step: int, rank: int, ranks: int) -> Indices:
        block = step // _BLOCK
        if self._dealt is None or self._dealt[:2] != (steps, block):
            self._dealt = steps, block, self._deal_block(steps, block, ranks)
        return self._dealt[2][step % _BLOCK][rank]

    def _deal_block(self, steps: Steps, block: int, ranks: int) -> list[list[Indices]]:
        """Return the samples of each step and rank."""
        numbers = range(block * _BLOCK, min((block + 1) * _BLOCK, len(steps)))
        groups = [self._groups(steps, step, ranks) for step in numbers]
        sums = np.array(
            [[self._costs[group].sum() for group in each] for each in groups]
        )
        chosen = assign(sums)
        return [
            [each[group] for group in row]
            for each, row in zip(groups, chosen.tolist(), strict=True)
        ]

    def _groups(self, steps: Steps, step: int, ranks: int) -> list[Indices]:
        """Return the samples of each batch of a step, in no order of ranks."""
        indices = self._to_indices(steps.positions(step))
        costs = self._costs[indices]
        if self.max_cost is None:
            groups = split_by_count(costs, ranks)
        else:
            groups = split_by_cost(costs, ranks, self.max_cost)
        return [indices[group] for group in groups]


class LoadBalancingSampler(LoadBalancingBatchSampler):
    """Gives all ranks samples of nearly equal cost, one in each step.

    It takes the place of ``DistributedSampler``, for loaders that make the batches
    themselves: ``DataLoader(dataset, batch_size, sampler=sampler)``. Such loaders call
    it once per sample. If a loader takes batches, ``LoadBalancingBatchSampler`` makes
    them more equal, because it can combine large and small samples.

    The samples of a step are neighbors in the order of cost within a window. The totals
    of the ranks over 64 steps differ by at most the largest difference within a step.
    All ranks have the same number of samples: the last step repeats some unless
    ``drop_last``.

    Args:
        dataset: The dataset, the same on all ranks.
        cost: As for ``LoadBalancingBatchSampler``.
        window: Steps whose samples are sorted together.
        shuffle: Whether each epoch has a random order of its own.
        seed: Seed of the order, the same on all ranks.
        drop_last: Whether to leave out what does not fill a step of all ranks. These
            are random samples, not those of the highest cost.
        cost_file: As for ``LoadBalancingBatchSampler``.
        rank: As for ``LoadBalancingBatchSampler``.
        num_replicas: As for ``LoadBalancingBatchSampler``.

    Raises:
        TypeError: ``dataset`` has no length.
        ValueError: The ranks have different datasets, costs or options.
        RuntimeError: ``cost`` has raised, or a cost is negative or not finite.
    """

    def __init__(
        self,
        dataset: Sized,
        cost: Cost,
        *,
        window: int = 64,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        cost_file: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        num_replicas: int | None = None,
    ) -> None:
        super().__init__(
            dataset,
            1,
            cost=cost,
            window=window,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            pad=not drop_last,
            cost_file=cost_file,
            rank=rank,
            num_replicas=num_replicas,
        )

    def __iter__(self) -> Iterator[Any]:
        """Yield the numbers of samples, not lists."""
        return (batch[0] for batch in super().__iter__())
