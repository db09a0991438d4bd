"""DecentLaM: decentralized momentum without the bias that momentum adds."""

from __future__ import annotations

import logging

import torch

from bluecomm.optim.algorithms.stateful_averaging import StatefulAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.exchanges.exchange import Exchange
from bluecomm.optim.exchanges.symmetric import SymmetricExchange
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm
from bluecomm.runtime import Communicator

_log = logging.getLogger("bluecomm")


@register_algorithm("decentlam")
class DecentLaM(StatefulAveraging):
    """Momentum of the whole round, mixing included, with a symmetric ``W``.

    With ``m = 0`` at the start:

        m <- momentum * m + x - W step(x, g(x)),    x <- x - m

    ``W`` is static, symmetric and doubly stochastic. An eigenvalue ``l`` of ``W`` gives
    the modes ``z`` with ``z**2 - (momentum + l) z + momentum = 0``. They decay for
    every real ``l`` below 1, but may grow for the complex ones of directed graphs.

    The momentum multiplies the rate by ``1 / (1 - momentum)``, so the user's optimizer
    is SGD without momentum, at the rate that suits SGD with this momentum.

    If the ranks' data differ, momentum in the user's optimizer increases the bias of
    neighbor averaging by the factor ``1 / (1 - momentum)**2``. Here the bias is that of
    plain SGD: the fixed point is that of ``neighbor_allreduce`` in ATC order without
    momentum.

    Args:
        momentum: From 0 to less than 1.
        topology: A static graph or schedule. Default: the topology in force.
        uneven_inputs: Let ranks ``join`` when they run out of data.

    Raises:
        ValueError: ``momentum`` is out of its range, or the user's optimizer has
            momentum, too; or ``W`` is not symmetric and doubly stochastic.

    Source:
        Yuan et al., "DecentLaM: Decentralized Momentum SGD for Large-batch Deep
        Training", ICCV 2021, arXiv:2104.11981.
    """

    works_on_devices = True
    communication_type = CommunicationType.neighbor_allreduce
    survives_losses = True
    trains_apart = True
    admits_newcomers = True
    acts_alone = True
    keeps = ("before", "momentum")

    brings_momentum = True

    def __init__(
        self,
        *,
        momentum: float = 0.9,
        topology: object = None,
        uneven_inputs: bool = False,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(
                f"momentum must be at least 0 and less than 1, got {momentum}"
            )
        super().__init__(order="atc", topology=topology, uneven_inputs=uneven_inputs)
        self._momentum = momentum

    def check_optimizer(
        self, optimizer: torch.optim.Optimizer, comm: Communicator
    ) -> None:
        """Refuse momentum on top of this algorithm's, and warn about Adam's."""
        if self._momentum == 0:
            return
        for group in optimizer.param_groups:
            if group.get("momentum"):
                raise ValueError(
                    f"decentlam: the optimizer has momentum={group['momentum']}, and "
                    f"decentlam adds its own momentum={self._momentum}, so the rate "
                    "is multiplied twice. Make the optimizer with momentum=0 "
                    "and pass its momentum to DistributedOptimizer(algorithm="
                    f"'decentlam', momentum={group['momentum']}), or pass momentum=0 "
                    "there"
                )
        has_moment = any(g.get("betas", (0,))[0] for g in optimizer.param_groups)
        if has_moment and comm.rank == 0:
            _log.warning(
                "decentlam: %s has a first moment, which is momentum of its own, and "
                "decentlam multiplies its steps by 1 / (1 - momentum) = %.3g. Use SGD "
                "without momentum, or lower the rate, or pass momentum=0 to "
                "DistributedOptimizer.",
                type(optimizer).__name__,
                1 / (1 - self._momentum),
            )

    def make_exchange(self) -> Exchange:
        return SymmetricExchange(
            self.context.comm,
            self.context.settings,
            self._topology,
            method="decentlam",
            is_lazy=False,
        )

    def restart(self) -> None:
        # The part of the momentum that pulls the ranks together no longer sums to zero.
        self.memory.zero("momentum")

    def begin(self, bucket: Bucket) -> None:
        self.memory.of("before", bucket).copy_(bucket.parameters.current)

    def after_round(self, bucket: Bucket) -> None:
        current, before = bucket.parameters.current, self.memory.of("before", bucket)
        momentum = self.memory.of("momentum", bucket)
        momentum.mul_(self._momentum).add_(before).sub_(current)
        current.copy_(before).sub_(momentum)
