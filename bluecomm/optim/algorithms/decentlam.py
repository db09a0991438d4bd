"""DecentLaM: decentralized momentum without the bias that momentum adds."""

from __future__ import annotations

from bluecomm.optim.algorithms.stateful_averaging import StatefulAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm


@register_algorithm("decentlam")
class DecentLaM(StatefulAveraging):
    """Momentum of the whole round, mixing included, with a doubly stochastic ``W``.

    The user's optimizer must have no momentum of its own. With ``m = 0`` at the start:

        m <- momentum * m + x - W step(x, g(x)),    x <- x - m

    If the ranks' data differ, momentum in the user's optimizer increases the bias of
    neighbor averaging by the factor ``1 / (1 - momentum)**2``. Here the bias is that of
    plain SGD: the fixed point is that of ``neighbor_allreduce`` in ATC order without
    momentum.

    Args:
        momentum: From 0 to less than 1.
        topology: As for ``neighbor_allreduce``.
        uneven_inputs: Let ranks ``join`` when they run out of data.

    Raises:
        ValueError: ``momentum`` is out of its range.

    Source:
        Yuan et al., "DecentLaM: Decentralized Momentum SGD for Large-batch Deep
        Training", ICCV 2021, arXiv:2104.11981.
    """

    communication_type = CommunicationType.neighbor_allreduce
    acts_alone = True
    keeps = ("before", "momentum")

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

    def begin(self, bucket: Bucket) -> None:
        self.memory.of("before", bucket).copy_(bucket.parameters.current)

    def after_round(self, bucket: Bucket) -> None:
        current, before = bucket.parameters.current, self.memory.of("before", bucket)
        momentum = self.memory.of("momentum", bucket)
        momentum.mul_(self._momentum).add_(before).sub_(current)
        current.copy_(before).sub_(momentum)
