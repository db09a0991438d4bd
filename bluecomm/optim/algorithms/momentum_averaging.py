"""Base of the algorithms that average Adam's momentum, in codes, after a warm-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bluecomm.compression import Codec, ErrorFeedback
from bluecomm.optim.algorithm import MOMENTUM_GROWS_OLD, no_join
from bluecomm.optim.algorithms.gradient_allreduce import (
    GradientAllreduce,
    name_of_gradients,
)
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.coded_momentum import CodedMomentum
from bluecomm.optim.failures import Failures
from bluecomm.optim.gradient_states import GradientStates
from bluecomm.optim.machines import Machines
from bluecomm.optim.qadam import MOMENTUM, QAdam
from bluecomm.optim.registry import name_of
from bluecomm.runtime import Communicator

# Options of QAdam, and the number of its steps, that must agree between ranks.
_COMMON = ("warmup_steps", "updates_per_doubling", "steps")


class MomentumAveraging(GradientAllreduce):
    """Averages gradients exactly in the warm-up of ``QAdam``, and then its momentum.

    Steps of the warm-up that do not update the second moment count as later ones.

    After the warm-up, gradients stay this rank's own until the step. The ranks only
    tell each other in backward which gradients exist and are finite. One that is not
    finite on some rank becomes NaN on all ranks, so that a ``GradScaler`` skips the
    step everywhere. The momentum is averaged inside the step, when gradients have been
    unscaled and clipped.

    Args:
        hierarchical: Whether the ranks of a machine first add their momentum in full
            precision, so that only one rank of each machine encodes and sends to other
            machines.
    """

    survives_losses = False
    admits_newcomers = False
    # A rank keeps errors of its piece of a bucket.
    rebuckets = False
    # As in bytegrad; a code is at most a quarter of a value.
    default_bucket_nbytes = 16 << 20
    honours = frozenset(
        {
            "backward_passes_per_step",
            "num_steps_per_communication",
            "sparse_as_dense",
        }
    )

    # Makes the codec, which encodes float32. A codec loads Numba, so an import of
    # bluecomm makes none.
    codec_class: Callable[[], Codec]

    def __init__(self, hierarchical: bool = False) -> None:
        super().__init__()
        self._is_hierarchical = hierarchical
        self._optimizer: QAdam
        self._momentum: list[CodedMomentum] = []
        self._states: GradientStates

    def feedback_of(self, bucket: Bucket) -> ErrorFeedback | None:
        """Return the error feedback of a bucket's codes, if the method has it."""
        return None

    def tensor_to_send(
        self, parameter: torch.Tensor, group: dict[str, Any]
    ) -> torch.Tensor | None:
        """Return what is averaged for a parameter of a group; ``None`` if nothing.

        The ranks have a gradient of the same parameters, and a new momentum of these.
        """
        if parameter.grad is None:
            return None
        momentum: torch.Tensor = self._optimizer.state[parameter][MOMENTUM]
        return momentum

    def take(
        self, parameter: torch.Tensor, group: dict[str, Any], average: torch.Tensor
    ) -> None:
        """Take the average for a parameter, before the optimizer moves it."""
        self._optimizer.state[parameter][MOMENTUM].copy_(average)

    @property
    def machine_sizes(self) -> list[int] | None:
        """The number of ranks of each machine, if only machines exchange codes."""
        comm = self.context.comm
        if not self._is_hierarchical:
            return None
        return [len(comm.layout.members(k)) for k in range(comm.machine_size)]

    @classmethod
    def needed_optimizer(
        cls, parameters: Any, lr: float, warmup_steps: int
    ) -> torch.optim.Optimizer:
        return QAdam(parameters, lr, warmup_steps=warmup_steps)

    @classmethod
    def memory_in_models(cls, ranks: int, neighbors: int) -> int:
        # The values that are sent.
        return super().memory_in_models(ranks, neighbors) + 1

    def check_optimizer(
        self, optimizer: torch.optim.Optimizer, comm: Communicator
    ) -> None:
        """Refuse all optimizers but ``QAdam``.

        Raises:
            TypeError: The optimizer is of another class.
        """
        if not isinstance(optimizer, QAdam):
            raise TypeError(
                f"DistributedOptimizer: {self._name} needs the optimizer "
                f"bluecomm.optim.QAdam, got {type(optimizer).__name__}; make it with "
                "QAdam(model.parameters(), lr=...), with a rate that suits Adam"
            )
        self._optimizer = optimizer
        group = optimizer.param_groups[0]
        self.given_options = {
            **self.given_options,
            **{f"QAdam's {key}": group[key] for key in _COMMON},
        }

    def setup(self, buckets: Sequence[Bucket]) -> None:
        self._states = GradientStates(self.context, self._name)
        self._states.check_layers(buckets)
        super().setup(buckets)
        if self.follows_backward():
            context, codec = self.context, self.codec_class()
            machines = Machines.of(context) if self._is_hierarchical else None
            self._momentum = [
                CodedMomentum(context, one, codec, self.feedback_of(one), machines)
                for one in buckets
            ]

    def start(self, bucket: Bucket, *, is_active: bool) -> None:
        if self._optimizer.updates_second_moment:
            super().start(bucket, is_active=is_active)
            return
        # The same name as in the warm-up: if a rank is still there, because it has
        # loaded another state, the kinds differ, which all ranks notice at once.
        self._states.start(bucket, name_of_gradients(bucket))

    def finish(self, *, is_active: bool) -> bool:
        if self._optimizer.updates_second_moment:
            return super().finish(is_active=is_active)
        self._states.finish()
        return True

    def before_update(self) -> None:
        super().before_update()
        if not self._momentum or self._optimizer.updates_second_moment:
            return
        self._states.refuse_not_finite()
        self._optimizer.update_moments()
        self.average_momentum()

    @torch.no_grad()
    def average_momentum(self) -> None:
        """Average the new momentum over the ranks, before the optimizer uses it."""
        groups = self._optimizer.groups_of_parameters()
        failures = Failures()
        for momentum in self._momentum:
            momentum.start(lambda one: self.tensor_to_send(one, groups[one]))
        for momentum in self._momentum:
            with failures.kept():
                momentum.begin()
        for momentum in self._momentum:
            if not momentum.is_under_way:
                continue
            with failures.kept():
                for parameter, average in momentum.finish():
                    self.take(parameter, groups[parameter], average)
        failures.raise_first()

    def joins_in_engine(self) -> bool:
        return not self.follows_backward()

    def obstacle_to_join(self) -> str:
        return no_join(MOMENTUM_GROWS_OLD)

    @property
    def _name(self) -> str:
        return name_of(type(self))
