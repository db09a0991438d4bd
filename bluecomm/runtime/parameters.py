"""What an operation needs besides its tensors, as the engine takes it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bluecomm._native import Parameters


# Making them costs more than a lookup, and calls come again and again.
@functools.lru_cache(maxsize=256)
def parameters(
    *,
    op: str = "sum",
    prescale: float = 1.0,
    postscale: float = 1.0,
    root: int = 0,
    splits: tuple[int, ...] = (),
    local_only: bool = False,
    self_weight: float = 1.0,
    sources: tuple[tuple[int, float], ...] = (),
    destinations: tuple[tuple[int, float], ...] = (),
) -> Parameters:
    """Return the parameters of a call; those that the kind does not need stay away.

    Args:
        op: The engine's word for the reduction.
        prescale: Factor before the reduction.
        postscale: Factor after it.
        root: Member whose values are sent.
        splits: Rows for each member; empty: the same for all. Adasum: elements of each
            tensor.
        local_only: Only among the members on this machine.
        self_weight: Weight of the own tensor.
        sources: In-neighbors (members or machines) and their weights.
        destinations: Out-neighbors and the weights given to them.
    """
    from bluecomm._native import Parameters

    return Parameters(
        op=op,
        prescale=prescale,
        postscale=postscale,
        root=root,
        splits=splits,
        local_only=local_only,
        self_weight=self_weight,
        sources=sources,
        destinations=destinations,
    )
