"""An operation that is one function of NCCL, with its factors."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from bluecomm.ops.nccl_factors import postscale_, prescaled

if TYPE_CHECKING:
    from bluecomm._native import NcclCall, NcclGroup, NcclQueue, Parameters


class Collective:
    """One call of a function of NCCL that does all of an operation but its factors.

    Args:
        kind: The engine's name of the operation.
        dtype: The engine's name of the element type.
        source: Contiguous tensor on the device.
        destination: Contiguous tensor for the result; ``source`` itself, or apart from
            it.
        parameters: Parameters of the operation. The factor before the reduction is
            applied at once, on the current stream.
    """

    def __init__(
        self,
        kind: str,
        dtype: str,
        source: torch.Tensor,
        destination: torch.Tensor,
        parameters: Parameters,
    ) -> None:
        self._kind = kind
        self._dtype = dtype
        self._source = prescaled(source, parameters)
        self._destination = destination
        self._parameters = parameters

    def make_draft(
        self, queue: NcclQueue, group: NcclGroup, stream: int, limit_s: float
    ) -> NcclCall:
        """See ``NcclWork``."""
        count, element = self._source.numel(), self._dtype
        if self._kind == "broadcast":
            count, element = self._source.nbytes, "uint8"
        elif self._kind == "reducescatter":
            count = self._destination.numel()
        return queue.make_call(
            group=group,
            kind=self._kind,
            source=self._source.data_ptr(),
            destination=self._destination.data_ptr(),
            count=count,
            dtype=element,
            op=self._parameters.op,
            root=self._parameters.root,
            stream=stream,
            limit_s=limit_s,
        )

    def complete(self, gone: Collection[int]) -> None:
        """Apply the factor after the reduction."""
        postscale_(self._destination, self._parameters)
