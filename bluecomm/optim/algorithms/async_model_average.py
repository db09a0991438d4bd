"""Averaging of parameters in the background, at a pace that no rank waits for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from bluecomm.optim.algorithms.gradient_allreduce import GradientAllreduce
from bluecomm.optim.background_algorithm import BackgroundAlgorithm
from bluecomm.optim.background_average import BackgroundAverage
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.registry import register_algorithm
from bluecomm.runtime import Communicator
from bluecomm.topology.graph import check_integer

_now = time.monotonic


@register_algorithm("async")
class AsyncModelAverage(BackgroundAlgorithm, GradientAllreduce):
    """Local steps, corrected by the mean of all ranks whenever it arrives.

    In the first ``warmup_steps`` steps gradients are averaged as in
    ``gradient_allreduce``. Afterwards a rank steps with its own gradients, and at the
    end of a step, if the last round began at least ``sync_interval_ms`` ago, it starts
    its part of a round with a snapshot ``s_i`` of its parameters. At the end of a later
    step, when all ranks have sent theirs, it computes::

        x_i <- mean_j s_j + (x_i - s_i)

    So local steps are kept, and ranks without further steps get the same bits. A slow
    rank delays the mean, but no step of another rank. A change of the parameters
    by other means than the optimizer's step counts as a step.

    A rank that has finished, or makes another optimizer for its model, sends its
    parameters until all ranks have; then all ranks have equal parameters. ``abort``
    does the same without the end, and ``resume`` goes on. Until ``abort`` or
    ``shutdown``, the model stays in memory, also if the program has dropped it.

    Args:
        sync_interval_ms: Least time from the beginning of a round to that of the next,
            in milliseconds; 0: a round begins as soon as the last one has been added.
        warmup_steps: Number of steps with averaged gradients.

    Raises:
        TypeError: An option has another type.
        ValueError: An option is negative.

    Source:
        Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations",
        VLDB 2021, arXiv:2107.01499.
    """

    works_on_devices = True
    flat_parameters = True
    # Only a warm-up uses flat gradients.
    flat_gradients = False
    survives_losses = False
    admits_newcomers = False
    hands_over_state = True
    rebuckets = False
    works_in_backward = False
    honours = frozenset({"backward_passes_per_step", "sparse_as_dense"})

    def __init__(
        self, *, sync_interval_ms: float = 500.0, warmup_steps: int = 0
    ) -> None:
        check_integer(warmup_steps, "warmup_steps", minimum=0)
        if not sync_interval_ms >= 0:
            raise ValueError(
                f"sync_interval_ms must be at least 0, got {sync_interval_ms}"
            )
        super().__init__()
        self.flat_gradients = warmup_steps > 0
        self._interval_s = sync_interval_ms / 1000
        self._warmup_steps = warmup_steps
        self._steps = 0  # of the warm-up
        self._last_start: float | None = None
        # None in a world of one.
        self._average: BackgroundAverage | None = None

    @classmethod
    def memory_in_models(cls, ranks: int, neighbors: int) -> int:
        # A snapshot and its mean, and no half for the next values.
        return super().memory_in_models(ranks, neighbors) + 1

    @property
    def _in_warmup(self) -> bool:
        return self._steps < self._warmup_steps

    def check_optimizer(
        self, optimizer: torch.optim.Optimizer, comm: Communicator
    ) -> None:
        if self._warmup_steps and isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "DistributedOptimizer: async with a warm-up does not work with LBFGS, "
                "whose number of evaluations in a step differs between ranks; pass "
                "warmup_steps=0"
            )

    def setup(self, buckets: Sequence[Bucket]) -> None:
        super().setup(buckets)
        for bucket in buckets:
            bucket.lay_out_parameters(halves=1)
        if self.context.comm.size > 1:
            self._average = BackgroundAverage(self.context, buckets)

    def follows_backward(self) -> bool:
        return self.flat_gradients and self.context.comm.size > 1

    # -- events ------------------------------------------------------------------------

    def on_gradients_ready(self, bucket: Bucket) -> None:
        if self._in_warmup:
            super().on_gradients_ready(bucket)

    def after_backward(self) -> None:
        if self._in_warmup:
            super().after_backward()

    def after_step(self) -> None:
        if self._in_warmup:
            self._steps += 1
        average = self._average
        if average is None or self._in_warmup:
            return
        for bucket in self.buckets:
            bucket.parameters.check()
        if average.is_under_way and average.is_done:
            average.apply()
        if self._is_on and not average.is_under_way and self._is_due():
            self._last_start = _now()
            average.start(is_ending=False)

    def _is_due(self) -> bool:
        last = self._last_start
        return last is None or _now() - last >= self._interval_s

    # -- the end -----------------------------------------------------------------------

    def end_together(self) -> None:
        average = self._average
        if average is None or self._in_warmup:
            return
        for bucket in self.buckets:
            bucket.parameters.check()
        failure: FloatingPointError | None = None
        is_over = False
        while not is_over:
            if not average.is_under_way:
                average.start(is_ending=True)
            try:
                average.apply()
            except FloatingPointError as error:
                failure = failure or error
            is_over = average.all_end
        if failure is not None:
            raise failure

    # -- state -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state.get("steps", 0)
