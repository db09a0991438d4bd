"""Makes the parameters of operations, which the engine needs besides the tensors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bluecomm._native import Parameters


# Cached, because making them takes longer than a lookup, and calls repeat.
@functools.lru_cache(maxsize=256)
def parameters(
    *,
    op: str = "sum",
    prescale: float = 1.0,
    postscale: float = 1.0,
    root: int = 0,
    splits: tuple[int, ...] = (),
    local_only: bool = False,
    algorithm: str = "auto",
    self_weight: float = 1.0,
    sources: tuple[tuple[int, float], ...] = (),
    destinations: tuple[tuple[int, float], ...] = (),
    peer: int = -1,
    tag: int = 0,
) -> Parameters:
    """Return the parameters of a call. Omit those that its kind does not need.

    Args:
        op: The engine's name of the reduction.
        prescale: Factor before the reduction.
        postscale: Factor after it.
        root: Member whose values are broadcast.
        splits: Number of rows for each member; if empty, the same number for all. For
            adasum, the number of elements of each tensor.
        local_only: Whether only the members on this machine take part.
        algorithm: ``direct``, ``ring`` or ``hierarchical``, for an allreduce, the same
            on all members; ``auto`` lets its size and the members decide.
        self_weight: Weight of this member's tensor.
        sources: In-neighbors (members or machines) and their weights.
        destinations: Out-neighbors and their weights.
        peer: Member to which a send goes, or whose message is received; -1 stands for
            any source.
        tag: Tag of a send or a receive.
    """
    from bluecomm._native import Parameters

    return Parameters(
        op=op,
        prescale=prescale,
        postscale=postscale,
        root=root,
        splits=splits,
        local_only=local_only,
        algorithm=algorithm,
        self_weight=self_weight,
        sources=sources,
        destinations=destinations,
        peer=peer,
        tag=tag,
    )
