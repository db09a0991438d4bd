"""GASLoC: many local steps, then gossip with momentum on what they have reached."""

from __future__ import annotations

import torch

from bluecomm.optim.algorithms.outer_step import OuterStep, check_outer
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm
from bluecomm.topology import RandomMatchings


@register_algorithm("gasloc")
class GASLoC(OuterStep):
    """GASLoC: gossip with local steps, accelerated by momentum on the proposals.

    ``W`` is the mixing matrix of the round. A proposal ``y`` is ``p`` and the progress
    of the local steps; ``y_old`` is that of the last round, and ``p`` at the start:

        y = p + lr * (x - p),    p <- y - gossip * (y - W y) + momentum * (y - y_old)

    One tensor, ``y``, is sent. With ``W = 1/n`` and ``gossip=1`` the mean of the ranks'
    ``p`` is that of ``diloco`` with the same rate and momentum, if the progress is the
    same; but the momentum is each rank's own.

    The paper writes ``alpha L`` with a weighted Laplacian ``L`` of the graph, which is
    ``gossip * (I - W)`` here, and takes one or two random peers. Its defaults were not
    available; those here are the rate and momentum of ``noloco``.

    Args:
        outer_lr: Rate of the outer step.
        outer_momentum: From 0 to less than 1.
        gossip: Fraction of the way to the neighbors' mean that ``y`` moves, above 0.
        topology: As for ``neighbor_allreduce``. Default: ``RandomMatchings``, with a
            new random partner in each round.
        fragments: As for ``diloco``.
        overlap: As for ``diloco``.
        mixing: As for ``diloco``.
        uneven_inputs: As for ``diloco``.

    Raises:
        TypeError: ``fragments`` or ``overlap`` is not an integer.
        ValueError: An option is out of its range.

    Source:
        Cagnasso, Belilovsky and Oyallon, "Unifying Local Communications and Local
        Updates for LLM Pretraining", 2026, arXiv:2606.11081. The recursion is that of a
        summary by others, because the paper itself was not available.
    """

    works_on_devices = True
    communication_type = CommunicationType.neighbor_allreduce
    default_topology = RandomMatchings

    def __init__(
        self,
        *,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.5,
        gossip: float = 1.0,
        topology: object = None,
        fragments: int = 1,
        overlap: int = 0,
        mixing: float = 0.0,
        uneven_inputs: bool = False,
    ) -> None:
        check_outer(outer_lr=outer_lr, outer_momentum=outer_momentum, gossip=gossip)
        super().__init__(
            fragments=fragments,
            overlap=overlap,
            mixing=mixing,
            topology=topology,
            uneven_inputs=uneven_inputs,
        )
        self._lr = outer_lr
        self._momentum = outer_momentum
        self._gossip = gossip

    # Between rounds, "momentum" is ``y_old - p``. While a round is under way, it is
    # ``y``, and "before" is the part of the next ``p`` that needs no neighbor.

    def to_progress(self, values: torch.Tensor, bucket: Bucket) -> None:
        before, behind = (self.memory.of(name, bucket) for name in self.keeps)
        values.sub_(before).mul_(self._lr)
        moved = values - behind  # y - y_old
        values.add_(before)
        behind.copy_(values)
        torch.mul(values, 1 - self._gossip, out=before)
        before.add_(moved, alpha=self._momentum)

    def to_outer(self, values: torch.Tensor, bucket: Bucket) -> None:
        rest, proposed = (self.memory.of(name, bucket) for name in self.keeps)
        values.mul_(self._gossip).add_(rest)
        proposed.sub_(values)
