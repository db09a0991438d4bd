"""Operations that consist of one operation for each of several tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from bluecomm.runtime import Handle
from bluecomm.runtime.handle import GroupHandle


def start_group(
    tensors: Iterable[torch.Tensor],
    name: str | None,
    start: Callable[[torch.Tensor, str | None], Handle[torch.Tensor]],
) -> Handle[list[torch.Tensor]]:
    """Start an operation for each tensor and return a handle for all of them.

    Args:
        tensors: The tensors, in the same order on all ranks.
        name: Common part of the tensors' names.
        start: Starts the operation on a tensor, with the tensor's name.
    """
    return GroupHandle(
        [
            start(tensor, None if name is None else f"{name}.{position}")
            for position, tensor in enumerate(tensors)
        ]
    )
