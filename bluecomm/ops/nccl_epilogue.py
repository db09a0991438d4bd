"""Work of NCCL with an epilogue: a computation of this member on NCCL's result."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import torch

from bluecomm.ops.nccl_call import NcclWork

if TYPE_CHECKING:
    from bluecomm._native import NcclCall, NcclGroup, NcclQueue


class WorkWithEpilogue:
    """Work whose result this member computes from the result of other work.

    Args:
        work: What NCCL does.
        epilogue: Called on the current stream when ``work`` is complete.
    """

    def __init__(self, work: NcclWork, epilogue: Callable[[], object]) -> None:
        self._work = work
        self._epilogue = epilogue

    def make_draft(
        self, queue: NcclQueue, group: NcclGroup, stream: int, limit_s: float
    ) -> NcclCall:
        """See ``NcclWork``."""
        return self._work.make_draft(queue, group, stream, limit_s)

    @torch.no_grad()
    def complete(self, gone: Collection[int]) -> None:
        """Complete the work, and compute the result from it."""
        self._work.complete(gone)
        self._epilogue()
