"""NoLoCo: many local steps, then one step of an outer optimizer with neighbors."""

from __future__ import annotations

import torch

from bluecomm.optim.algorithms.outer_step import OuterStep, check_outer
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm
from bluecomm.topology import RandomMatchings


@register_algorithm("noloco")
class NoLoCo(OuterStep):
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
        fragments: As for ``diloco``.
        overlap: As for ``diloco``.
        mixing: As for ``diloco``.
        uneven_inputs: As for ``diloco``.

    Raises:
        TypeError: ``fragments`` or ``overlap`` is not an integer.
        ValueError: An option is out of its range.

    Source:
        Kolehmainen et al., "NoLoCo: No-all-reduce Low Communication Training Method
        for Large Models", 2025, arXiv:2506.10911.
    """

    works_on_devices = True
    communication_type = CommunicationType.neighbor_allreduce
    default_topology = RandomMatchings
    survives_losses = True
    admits_newcomers = True

    def __init__(
        self,
        *,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.5,
        pull: float = 1.0,
        topology: object = None,
        fragments: int = 1,
        overlap: int = 0,
        mixing: float = 0.0,
        uneven_inputs: bool = False,
    ) -> None:
        check_outer(outer_lr=outer_lr, outer_momentum=outer_momentum, pull=pull)
        super().__init__(
            fragments=fragments,
            overlap=overlap,
            mixing=mixing,
            topology=topology,
            uneven_inputs=uneven_inputs,
        )
        self._lr = outer_lr
        self._momentum = outer_momentum
        self._pull = pull

    def to_progress(self, values: torch.Tensor, bucket: Bucket) -> None:
        before = self.memory.of("before", bucket)
        values.sub_(before).mul_(self._lr).add_(before, alpha=self._pull)

    def to_outer(self, values: torch.Tensor, bucket: Bucket) -> None:
        before, momentum = (self.memory.of(name, bucket) for name in self.keeps)
        momentum.mul_(self._momentum).add_(values).sub_(before, alpha=self._pull)
        values.copy_(before).add_(momentum)
