"""DiLoCo and NoLoCo: many local steps, then one step of an outer optimizer.

``p`` stands for the parameters after the last round, and ``x`` for those after
``num_steps_per_communication`` more steps of the user's (inner) optimizer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bluecomm.ops.neighbor_weights import Weights
from bluecomm.optim.algorithms.stateful_averaging import StatefulAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.exchanges.exchange import EXCHANGES, Exchange
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm
from bluecomm.topology import RandomMatchings

_log = logging.getLogger("bluecomm")


class _OuterStep(StatefulAveraging):
    """Base of both methods, which average different tensors."""

    acts_alone = True
    # A newcomer needs the same p as the others. A momentum of its own may begin with
    # that of any rank.
    hands_over_state = True
    keeps = ("before", "momentum")

    def begin(self, bucket: Bucket) -> None:
        self.memory.of("before", bucket).copy_(bucket.parameters.current)


@register_algorithm("diloco")
class DiLoCo(_OuterStep):
    """DiLoCo: SGD with Nesterov momentum on the mean of the ranks' progress.

    With ``m = 0`` at the start:

        D = mean_i (p_i - x_i),    m <- momentum * m + D,
        p <- p - lr * (D + momentum * m)

    ``lr=1, momentum=0`` is local SGD. All ranks must start equal.

    The outer momentum multiplies the progress of a round by up to the gain
    ``outer_lr / (1 - outer_momentum)``, which is 7 by default. So rounds must be long
    enough for the inner optimizer to settle: ``num_steps_per_communication`` is 30 by
    default, and 500 in the paper, for language models with AdamW. If the gain is above
    2, rounds of fewer than ``2 / (1 - outer_momentum)`` steps log a warning. A training
    of fewer steps than one round communicates nothing.

    Args:
        outer_lr: Rate of the outer step.
        outer_momentum: From 0 to less than 1.
        uneven_inputs: Let ranks ``join`` when they run out of data; their own progress
            is zero from then on.

    Raises:
        ValueError: An option is out of its range.

    Source:
        Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language
        Models", 2023, arXiv:2311.08105.
    """

    communication_type = CommunicationType.allreduce
    survives_losses = True
    admits_newcomers = True
    default_steps_per_communication = 30

    def __init__(
        self,
        *,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        uneven_inputs: bool = False,
    ) -> None:
        _check(outer_lr=outer_lr, outer_momentum=outer_momentum)
        super().__init__(order="atc", uneven_inputs=uneven_inputs)
        self._lr = outer_lr
        self._momentum = outer_momentum

    def setup(self, buckets: Sequence[Bucket]) -> None:
        super().setup(buckets)
        gain = self._lr / (1 - self._momentum)
        steps = self.context.options.num_steps_per_communication
        least = round(2 / (1 - self._momentum))
        if gain > 2 and steps < least and self.context.comm.rank == 0:
            _log.warning(
                "diloco: num_steps_per_communication=%d is too few for "
                "outer_momentum=%g, which multiplies the progress of a round by up "
                "to %.3g, so training may diverge. Use at least %d steps, or "
                "outer_lr=1, outer_momentum=0, which is local_sgd.",
                steps,
                self._momentum,
                gain,
                least,
            )

    def before_round(self, bucket: Bucket, weights: Weights) -> None:
        current = bucket.parameters.current
        current.neg_().add_(self.memory.of("before", bucket))

    def after_round(self, bucket: Bucket) -> None:
        current, momentum = (
            bucket.parameters.current,
            self.memory.of("momentum", bucket),
        )
        momentum.mul_(self._momentum).add_(current)
        current.add_(momentum, alpha=self._momentum).mul_(-self._lr)
        current.add_(self.memory.of("before", bucket))


@register_algorithm("noloco")
class NoLoCo(_OuterStep):
    """NoLoCo: the outer step with neighbors, without a collective over all ranks.

    With ``m = 0`` at the start and ``W`` the mixing matrix of the round:

        m <- momentum * m + lr * W (x - p) - pull * (p - W p),    p <- p + m

    The last term pulls the ranks together. One tensor, ``lr (x - p) + pull p``, is
    sent.

    Args:
        outer_lr: Rate of the outer step.
        outer_momentum: From 0 to less than 1.
        pull: Fraction of the way to the neighbors' mean that ``p`` moves, above 0.
        topology: As for ``neighbor_allreduce``. Default: ``RandomMatchings``, as in the
            paper, with a new random partner in each round.
        uneven_inputs: As for ``diloco``.

    Raises:
        ValueError: An option is out of its range.

    Source:
        Kolehmainen et al., "NoLoCo: No-all-reduce Low Communication Training Method
        for Large Models", 2025, arXiv:2506.10911.
    """

    communication_type = CommunicationType.neighbor_allreduce
    survives_losses = True
    admits_newcomers = True

    def __init__(
        self,
        *,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.5,
        pull: float = 1.0,
        topology: object = None,
        uneven_inputs: bool = False,
    ) -> None:
        _check(outer_lr=outer_lr, outer_momentum=outer_momentum, pull=pull)
        super().__init__(order="atc", topology=topology, uneven_inputs=uneven_inputs)
        self._lr = outer_lr
        self._momentum = outer_momentum
        self._pull = pull

    def make_exchange(self) -> Exchange:
        comm, topology = self.context.comm, self._topology
        if topology is None:
            topology = RandomMatchings(comm.size)
        return EXCHANGES[self.communication_type](comm, self.context.settings, topology)

    def before_round(self, bucket: Bucket, weights: Weights) -> None:
        before = self.memory.of("before", bucket)
        current = bucket.parameters.current
        current.sub_(before).mul_(self._lr).add_(before, alpha=self._pull)

    def after_round(self, bucket: Bucket) -> None:
        before, momentum = (self.memory.of(name, bucket) for name in self.keeps)
        current = bucket.parameters.current
        momentum.mul_(self._momentum).add_(current).sub_(before, alpha=self._pull)
        current.copy_(before).add_(momentum)


def _check(*, outer_momentum: float, **positive: float) -> None:
    if not 0 <= outer_momentum < 1:
        raise ValueError(
            f"outer_momentum must be at least 0 and less than 1, got {outer_momentum}"
        )
    for name, value in positive.items():
        if not value > 0:
            raise ValueError(f"{name} must be above 0, got {value}")
