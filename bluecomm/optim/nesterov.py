"""SGD with Nesterov momentum on flat tensors, as outer optimizers use it."""

from __future__ import annotations

import torch


def nesterov_step(
    progress: torch.Tensor,
    before: torch.Tensor,
    momentum: torch.Tensor,
    lr: float,
    factor: float,
) -> None:
    """Replace the progress ``D``, in ``progress``, by the next parameters ``p``.

    With ``p`` in ``before`` and ``m`` in ``momentum``, which is changed, too::

        m <- factor * m + D,    p - lr * (D + factor * m)

    Args:
        progress: The progress; flat.
        before: The parameters before the step.
        momentum: The momentum.
        lr: Rate of the step.
        factor: Factor of the momentum.
    """
    momentum.mul_(factor).add_(progress)
    progress.add_(momentum, alpha=factor).mul_(-lr)
    progress.add_(before)
