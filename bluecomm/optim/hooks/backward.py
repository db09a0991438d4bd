"""Follows backward passes: when a bucket's gradients are ready, and when a pass ends.

docs/optimizer.md describes the states of a bucket of gradients: *filling*, *in flight*
(the bucket is in ``_announced``), *final*.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.buckets.bucket import Bucket

# Called inside a backward pass, registers a function that autograd calls at its end.
queue_callback: Callable[[Callable[[], None]], None] = (
    torch.autograd.Variable._execution_engine.queue_callback
)


class BackwardTracker:
    """Calls the hooks of an algorithm as gradients become ready.

    Args:
        algorithm: The algorithm whose hooks are called.
        buckets: Buckets with flat gradients.
        passes: Backward passes that are summed before gradients are sent.
    """

    def __init__(
        self, algorithm: Algorithm, buckets: Sequence[Bucket], passes: int
    ) -> None:
        self._algorithm = algorithm
        self._buckets = tuple(buckets)
        self._passes = passes
        self._passed = 0
        self._enabled = True
        # Whether gradients have been computed since the last exchange, and whether
        # there has been an exchange since the last step.
        self._is_dirty = False
        self._has_exchanged = False
        self._announced: set[Bucket] = set()
        self._missing: dict[Bucket, set[int]] = {}
        self._queued: set[int] = set()
        # By the number of a bucket, and a position there.
        self._hooked: dict[tuple[int, int], list[torch.utils.hooks.RemovableHandle]]
        self._hooked = {}
        self.watch_parameters()

    def watch_parameters(self) -> None:
        """Hook all parameters that require gradients now, and expect their gradients.

        Call it between backward passes; inside a pass it may delay buckets to the end.
        """
        for number, bucket in enumerate(self._buckets):
            for position, slot in enumerate(bucket.slots):
                key = (number, position)
                if slot.parameter.requires_grad and key not in self._hooked:
                    self._hooked[key] = self._hook(slot.parameter, number, position)
        self._expect_all()

    def close(self) -> None:
        """Remove the hooks."""
        for handles in self._hooked.values():
            for handle in handles:
                handle.remove()
        self._hooked.clear()

    def rebucket(self, buckets: Sequence[Bucket]) -> None:
        """Follow other buckets of the same parameters; call it between two steps."""
        self.close()
        self._buckets = tuple(buckets)
        self.watch_parameters()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let backward passes accumulate gradients without communication."""
        was, self._enabled = self._enabled, False
        try:
            yield
        finally:
            self._enabled = was

    def flush(self) -> None:
        """Exchange all gradients not exchanged yet, before they are used."""
        if self._is_dirty or not self._has_exchanged:
            self._exchange_rest()

    def on_step(self) -> None:
        """Record that the gradients have been used."""
        self._has_exchanged = False

    def reset(self) -> None:
        """Record that the gradients are about to be dropped."""
        if self._announced:
            # A backward pass was aborted; the peers need the rest of its round.
            self._exchange_rest()
        self._expect_all()
        self._queued.clear()
        self._passed = 0
        self._is_dirty = self._has_exchanged = False

    # -- inside a backward pass -------------------------------------------------------

    def _hook(
        self, parameter: Any, number: int, position: int
    ) -> list[torch.utils.hooks.RemovableHandle]:
        # The hooks must not keep the optimizer alive, nor the bucket, which holds the
        # parameter: the garbage collector does not see all references to a hook.
        me = weakref.ref(self)

        def before(gradient: torch.Tensor) -> None:
            tracker = me()
            if tracker is not None:
                tracker._before_accumulation(tracker._buckets[number])

        def after(_: torch.Tensor) -> None:
            tracker = me()
            if tracker is not None:
                tracker._after_accumulation(tracker._buckets[number], position)

        return [
            parameter.register_hook(before),
            parameter.register_post_accumulate_grad_hook(after),
        ]

    def _before_accumulation(self, bucket: Bucket) -> None:
        if bucket in self._announced:
            # A second gradient in one pass: the engine still uses the bucket.
            self._finish()

    def _after_accumulation(self, bucket: Bucket, position: int) -> None:
        bucket.gradients.keep(position)
        self._is_dirty = True
        if not self._enabled:
            return
        task = torch._C._current_graph_task_id()
        if task not in self._queued:
            self._queued.add(task)
            queue_callback(lambda: self._on_end(task))
        if self._passed + 1 >= self._passes:
            missing = self._missing[bucket]
            missing.discard(position)
            if not missing and bucket not in self._announced:
                self._announce(bucket)

    def _on_end(self, task: int) -> None:
        self._queued.discard(task)
        self._passed += 1
        if self._passed >= self._passes:
            self._exchange_rest()

    # -- exchanges --------------------------------------------------------------------

    def _announce(self, bucket: Bucket) -> None:
        self._announced.add(bucket)
        self._algorithm.on_gradients_ready(bucket)

    def _finish(self) -> None:
        self._announced.clear()
        self._algorithm.after_backward()

    def _exchange_rest(self) -> None:
        for bucket in self._buckets:
            if bucket not in self._announced:
                self._announce(bucket)
        self._finish()
        self._expect_all()
        self._passed = 0
        self._is_dirty = False
        self._has_exchanged = True

    def _expect_all(self) -> None:
        """Expect a gradient for each parameter that requires one."""
        self._missing = {
            bucket: {
                position
                for position, slot in enumerate(bucket.slots)
                if slot.parameter.requires_grad
            }
            for bucket in self._buckets
        }
