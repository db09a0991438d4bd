"""What an algorithm is: a few hooks that the coordinator calls.

See docs/optimizer.md for who calls what when. A new algorithm is one file::

    @register_algorithm("every_other")
    class EveryOther(Algorithm):
        flat_gradients = True

        def on_gradients_ready(self, bucket): ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bluecomm.errors import CommunicationTimeout
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.options import CommonOptions, StepSettings
from bluecomm.optim.schedule import Schedule
from bluecomm.runtime import Communicator, Handle

_SKIPPED = (
    "A rank that leaves out optimizer.step() must call optimizer.skip_step() instead, "
    "since every rank takes part in every round."
)


@dataclasses.dataclass(frozen=True)
class Context:
    """What an algorithm knows of the optimizer that it serves.

    Attributes:
        comm: Ranks that take part.
        name: Prefix of the names of its operations, equal on all ranks.
        options: What was given to ``DistributedOptimizer`` for every algorithm.
        settings: What the user may set before each step.
        schedule: Which step has a round.
    """

    comm: Communicator
    name: str
    options: CommonOptions
    settings: StepSettings
    schedule: Schedule


class Algorithm:
    """How one optimizer communicates. All hooks default to nothing.

    The constructor takes the ``**algorithm_options`` of ``DistributedOptimizer``; the
    context is there from ``setup`` on.
    """

    # Whether the values (two halves) or the gradients live in flat memory.
    flat_parameters = False
    flat_gradients = False
    # Options of DistributedOptimizer that it honours, of those not all do.
    honours: frozenset[str] = frozenset()
    # Bytes that are sent together, where the user does not say. All of it is there when
    # a round begins, so few large operations are best.
    default_bucket_nbytes = 25 << 20

    context: Context
    # What the constructor was given, which must agree between ranks.
    given_options: Mapping[str, object] = {}

    def setup(self, buckets: Sequence[Bucket]) -> None:
        """Take the buckets, in the order in which gradients become ready."""

    def follows_backward(self) -> bool:
        """Return whether it wants to know of gradients; asked once, after ``setup``."""
        return self.flat_gradients

    def before_forward(self, bucket: Bucket) -> None:
        """Start what hides behind forward and backward.

        Called for each bucket, in order of use, in the first training forward pass of
        a step that has a round.
        """

    def on_gradients_ready(self, bucket: Bucket) -> None:
        """Start the exchange of a bucket's gradients, all of which are there.

        Only with ``flat_gradients``. Called once per bucket in each backward pass that
        communicates, the same number of times on every rank.
        """

    def after_backward(self) -> None:
        """Wait for the buckets announced by ``on_gradients_ready``."""

    def before_step(self) -> None:
        """Prepare parameters and gradients for the user's step."""

    def before_update(self) -> None:
        """Change the gradients that the user's step is about to use.

        Called inside of the step, with unscaled gradients, after each evaluation of a
        closure. Not called where the step itself is left out.
        """

    def after_step(self) -> None:
        """Start what follows the user's step (or its omission)."""

    def settle(self, *, for_writing: bool) -> None:
        """Make the parameters' values final, because somebody wants them.

        Args:
            for_writing: They will also be changed.
        """

    def drain(self) -> None:
        """Wait for what is under way: the world is about to end."""
        self.settle(for_writing=False)

    def join(self) -> int:
        """Take part without data until all ranks do; return the last rank to join.

        Raises:
            ValueError: The algorithm, as it is set up, cannot do that.
        """
        raise ValueError(
            f"join: the algorithm {type(self).__name__} has no join; give all ranks "
            "the same number of batches"
        )

    def finalize(self) -> None:
        """Finish what is under way; the parameters get another optimizer."""
        self.settle(for_writing=True)

    def state_dict(self) -> dict[str, Any]:
        """Return what the algorithm needs to go on after a restart."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` returned."""


class Round:
    """One exchange with the other ranks: an operation per bucket, under way."""

    def __init__(self) -> None:
        self._handles: list[tuple[Bucket, Handle[torch.Tensor]]] = []

    def __bool__(self) -> bool:
        return bool(self._handles)

    def add(self, bucket: Bucket, handle: Handle[torch.Tensor]) -> None:
        """Note that a bucket's operation has been started."""
        self._handles.append((bucket, handle))

    def wait(self) -> list[tuple[Bucket, torch.Tensor]]:
        """Return the buckets and their results, once all are there.

        The round is empty after it, also when it fails.

        Raises:
            BluecommError: An operation failed; the first failure, after all are over.
        """
        handles, self._handles = self._handles, []
        results: list[tuple[Bucket, torch.Tensor]] = []
        failures: list[Exception] = []
        for bucket, handle in handles:
            try:
                results.append((bucket, handle.wait()))
            except CommunicationTimeout as error:
                error.remedy = _SKIPPED
                error.args = (f"{error}. {_SKIPPED}",)
                failures.append(error)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return results
