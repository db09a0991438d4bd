"""EXTRA: decentralized gradient descent without its bias."""

from __future__ import annotations

from bluecomm.optim.algorithms.stateful_averaging import StatefulAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.exchanges.exchange import Exchange
from bluecomm.optim.exchanges.symmetric import SymmetricExchange
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm


@register_algorithm("extra")
class Extra(StatefulAveraging):
    """EXTRA, with a symmetric, doubly stochastic ``W``.

    CTA with a correction ``q``, zero at the start, whose sum over the ranks stays zero:

        x' = step(W x + q, g(x)),    q' = q - (x - W x) / 2

    This is the paper's ``x'' = (I + W) x' - (I + W)/2 x - lr (g(x') - g(x))``, summed
    over the steps, but does not store old parameters. The exchange overlaps with
    forward and backward. With full gradients and a constant rate, the ranks reach the
    optimum of the mean of their losses exactly.

    Args:
        topology: A static graph or schedule. Default: the topology in force.

    Source:
        Shi, Ling, Wu and Yin, "EXTRA: An Exact First-Order Algorithm for Decentralized
        Consensus Optimization", SIAM J. Optimization 25 (2015), arXiv:1404.6264.
    """

    works_on_devices = True
    communication_type = CommunicationType.neighbor_allreduce
    survives_losses = True
    trains_apart = True
    admits_newcomers = True
    may_join = False
    keeps = ("correction",)

    def __init__(self, *, topology: object = None) -> None:
        super().__init__(order="cta", topology=topology)

    def make_exchange(self) -> Exchange:
        return SymmetricExchange(
            self.context.comm,
            self.context.settings,
            self._topology,
            method="extra",
            is_lazy=False,
        )

    def restart(self) -> None:
        # The corrections of those that are left need not sum to zero.
        self.memory.zero("correction")

    def after_round(self, bucket: Bucket) -> None:
        values, correction = bucket.parameters, self.memory.of("correction", bucket)
        change = (values.current - values.next).mul_(0.5)
        values.current.add_(correction)
        correction.add_(change)
