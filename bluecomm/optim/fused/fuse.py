"""``fuse_optimizer`` makes an optimizer step on flat memory."""

from __future__ import annotations

from typing import Any

import torch

from bluecomm.optim.derived_class import derive
from bluecomm.optim.fused.fused_optimizer import FUSION_KEY, GIVEN_KEY, Fused
from bluecomm.optim.fused.fusion import Fusion
from bluecomm.optim.fused.probe import check_elementwise
from bluecomm.optim.wrapper import Distributed

__all__ = ["fuse_optimizer"]

# On a CPU, copying the gradient of a larger parameter costs more than a call.
_MAX_ELEMENTS = 1 << 15


def fuse_optimizer(
    optimizer: torch.optim.Optimizer, *, max_elements: int | None = _MAX_ELEMENTS
) -> Any:
    """Return an optimizer that steps all parameters of a group and dtype at once.

    The given optimizer's own step runs on one flat tensor instead of each parameter,
    which takes much less time if there are many small parameters. It works for any
    optimizer that updates each element from its own gradient and state, whether or not
    it has a ``foreach`` or ``fused`` form. To find out, it takes a few steps with
    copies of the optimizer that have small parameters.

    The new optimizer has the class, the parameter groups and the state of the given
    one, which must not be used any more. Schedulers made for either one work. Its
    ``state_dict`` has the form of the given one's, and each loads that of the other.
    Call it after the model has its final dtype and device, because ``p.data`` become
    views of flat memory, and before ``DistributedOptimizer``. It needs no ``init``.

    Args:
        optimizer: An optimizer whose step is elementwise. It may have taken steps.
        max_elements: Number of elements of the largest parameter to fuse; ``None`` to
            fuse all. Larger ones are stepped by themselves and not moved, because
            fusing them saves little and costs a copy of their gradients.

    Returns:
        New object, an instance of ``type(optimizer)``. Its attribute ``fusion_counts``
        has the number of steps, of flat tensors (``runs``) and of parameters stepped by
        themselves (``alone``).

    Raises:
        TypeError: ``optimizer`` is not an optimizer.
        ValueError: The optimizer cannot be fused, and why; or it is fused or
            distributed already; or ``max_elements`` is negative.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            "fuse_optimizer: expected a torch.optim.Optimizer, got "
            f"{type(optimizer).__name__}"
        )
    if isinstance(optimizer, Distributed):
        raise ValueError(
            "fuse_optimizer: the optimizer is distributed already; fuse it first: "
            "DistributedOptimizer(fuse_optimizer(optimizer), model)"
        )
    if isinstance(optimizer, Fused):
        raise ValueError("fuse_optimizer: the optimizer is fused already")
    if max_elements is not None and max_elements < 0:
        raise ValueError(
            f"fuse_optimizer: expected max_elements >= 0 or None, got {max_elements}"
        )
    kinds = check_elementwise(optimizer, optimizer.param_groups)
    new = derive(optimizer, Fused)
    new.__dict__[GIVEN_KEY] = optimizer
    new.__dict__[FUSION_KEY] = Fusion(new, kinds, max_elements)
    return new
