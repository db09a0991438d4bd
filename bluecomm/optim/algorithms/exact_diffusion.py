"""Exact diffusion and D^2: diffusion without its bias, for one message a step.

Both are ATC with a correction ``c``, zero at the start, whose sum over the ranks stays
zero. With ``V`` the matrix of the method and ``step`` the user's optimizer:

    z = step(x, g(x)) + c,    x <- V z,    c <- c + V z - z

Without ``c`` this is ``neighbor_allreduce`` in ATC order. In a fixed point ``z = V z``
is the same on all ranks, and ``c`` makes up for the difference between the ranks'
steps. This equals the recursion of the papers,
``x'' = V (2 x' - x - lr g(x') + lr g(x))``, but does not store old parameters, so
parameters may be changed between steps.
"""

from __future__ import annotations

from typing import ClassVar

from bluecomm.ops.neighbor_weights import Weights
from bluecomm.optim.algorithms.stateful_averaging import StatefulAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.exchanges.exchange import Exchange
from bluecomm.optim.exchanges.symmetric import SymmetricExchange
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm


class _CorrectedDiffusion(StatefulAveraging):
    """Base of both methods, which differ in ``V``."""

    communication_type = CommunicationType.neighbor_allreduce
    survives_losses = True
    trains_apart = True
    admits_newcomers = True
    may_join = False
    keeps = ("correction",)
    method: ClassVar[str]
    is_lazy: ClassVar[bool]
    lowest: ClassVar[float]

    def __init__(self, *, topology: object = None) -> None:
        super().__init__(order="atc", topology=topology)

    def make_exchange(self) -> Exchange:
        return SymmetricExchange(
            self.context.comm,
            self.context.settings,
            self._topology,
            method=self.method,
            is_lazy=self.is_lazy,
            lowest=self.lowest,
        )

    def restart(self) -> None:
        # The corrections of those that are left need not sum to zero.
        self.memory.zero("correction")

    def before_round(self, bucket: Bucket, weights: Weights) -> None:
        bucket.parameters.current.add_(self.memory.of("correction", bucket))

    def after_round(self, bucket: Bucket) -> None:
        values = bucket.parameters
        self.memory.of("correction", bucket).add_(values.current).sub_(values.next)


@register_algorithm("exact_diffusion")
class ExactDiffusion(_CorrectedDiffusion):
    """Exact diffusion: ``V = (I + W) / 2`` for a symmetric, doubly stochastic ``W``.

    With full gradients and a constant rate, the ranks reach the optimum of the mean of
    their losses exactly, however much their data differ.

    Args:
        topology: A static graph or schedule. Default: the topology in force.

    Source:
        Yuan, Ying, Zhao and Sayed, "Exact Diffusion for Distributed Optimization and
        Learning", IEEE Trans. Signal Processing 67 (2019), arXiv:1702.05122.
    """

    works_on_devices = True
    method = "exact_diffusion"
    is_lazy = True
    lowest = -2.0


@register_algorithm("d2")
class D2(_CorrectedDiffusion):
    """D^2: ``V = W``, symmetric, doubly stochastic, eigenvalues above ``-1/3``.

    Mixes more in each round than exact diffusion, but allows fewer topologies.

    Args:
        topology: A static graph or schedule. Default: the topology in force.

    Source:
        Tang, Lian, Yan, Zhang and Liu, "D^2: Decentralized Training over Decentralized
        Data", ICML 2018, arXiv:1803.07068.
    """

    works_on_devices = True
    method = "d2"
    is_lazy = False
    lowest = -1 / 3
