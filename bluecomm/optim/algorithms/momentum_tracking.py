"""Momentum tracking: every rank tracks the mean of all ranks' updates."""

from __future__ import annotations

from bluecomm.ops.neighbor_weights import Weights
from bluecomm.optim.algorithms.stateful_averaging import StatefulAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.exchanges.doubly_stochastic import DoublyStochasticExchange
from bluecomm.optim.exchanges.exchange import Exchange
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm


@register_algorithm("momentum_tracking")
class MomentumTracking(StatefulAveraging):
    """Tracking of the user's own updates, with a doubly stochastic ``W``.

    ``d = x - step(x, g(x))`` is the update of the user's optimizer, for SGD with
    momentum ``lr`` times the momentum. It spans several steps with
    ``num_steps_per_communication``. With ``y = 0`` and ``d_old = 0`` at the start:

        y <- W y + d - d_old,    x <- W (x - y)

    ``sum_i y_i = sum_i d_i`` always holds. In a fixed point all ranks subtract the mean
    of the updates, and that mean is zero. ``x`` and ``y`` are sent: twice the bytes of
    ``neighbor_allreduce``.

    Args:
        topology: As for ``neighbor_allreduce``.

    Source:
        Takezawa et al., "Momentum Tracking: Momentum Acceleration for Decentralized
        Deep Learning on Heterogeneous Data", TMLR 2023, arXiv:2209.15505.
    """

    works_on_devices = True
    communication_type = CommunicationType.neighbor_allreduce
    survives_losses = True
    trains_apart = True
    admits_newcomers = True
    may_join = False
    # The parameters before the step, d_old and W y; y is scratch.
    keeps = ("before", "update", "mixed")
    scratch = ("tracked",)
    shares = ("tracked", "mixed")

    def __init__(self, *, topology: object = None) -> None:
        super().__init__(order="atc", topology=topology)

    def make_exchange(self) -> Exchange:
        return DoublyStochasticExchange(
            self.context.comm,
            self.context.settings,
            self._topology,
            method="momentum_tracking",
        )

    def restart(self) -> None:
        # y of those that are left need not sum to their updates: y = d, as at first.
        self.memory.zero("update")
        self.memory.zero("mixed")

    def begin(self, bucket: Bucket) -> None:
        self.memory.of("before", bucket).copy_(bucket.parameters.current)

    def before_round(self, bucket: Bucket, weights: Weights) -> None:
        current, before = bucket.parameters.current, self.memory.of("before", bucket)
        update = self.memory.of("update", bucket)
        tracked, mixed = (self.memory.of(name, bucket) for name in self.shares)
        tracked.copy_(mixed).sub_(update)
        update.copy_(before).sub_(current)
        tracked.add_(update)
        current.copy_(before).sub_(tracked)
        handle = self._exchanges[self._kind].start(
            weights, tracked, mixed, f"{bucket.name}.tracked"
        )
        self._more.add(bucket, handle)
