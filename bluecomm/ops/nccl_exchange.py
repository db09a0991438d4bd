"""The tensors that neighbors send to one another through NCCL, and their sum."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from bluecomm.device.staging import Staging

if TYPE_CHECKING:
    from bluecomm._native import NcclCall, NcclGroup, NcclQueue, Parameters


class NcclExchange:
    """One neighbor_allreduce: messages of one group of NCCL, and the weighted sum.

    Weights of destinations are applied on the current stream, before NCCL sends.

    Args:
        staging: Staging of the device.
        own: Contiguous tensor of this rank.
        result: Contiguous tensor for the sum; ``own`` itself, or apart from it.
        parameters: Weights of the operation.
    """

    def __init__(
        self,
        staging: Staging,
        own: torch.Tensor,
        result: torch.Tensor,
        parameters: Parameters,
    ) -> None:
        self._own = own
        self._result = result
        self._self_weight = parameters.self_weight
        self._sources = parameters.sources
        shape = (len(self._sources), *own.shape)
        self._received = staging.empty(shape, own.dtype).unbind()
        weights = {weight for _, weight in parameters.destinations}
        self._sent = {one: own if one == 1.0 else own * one for one in weights}
        self._sends = [
            (peer, self._sent[weight].data_ptr(), own.nbytes)
            for peer, weight in parameters.destinations
        ]
        self._receives = [
            (peer, row.data_ptr(), own.nbytes)
            for (peer, _), row in zip(parameters.sources, self._received, strict=True)
        ]

    def make_ticket(
        self, queue: NcclQueue, group: NcclGroup, stream: int, limit_s: float
    ) -> NcclCall:
        """See ``NcclWork``."""
        return queue.make_exchange(
            group=group,
            sends=self._sends,
            receives=self._receives,
            stream=stream,
            limit_s=limit_s,
        )

    @torch.no_grad()
    def complete(self, gone: Collection[int]) -> None:
        """Write the sum to the result, on the current stream, once all has arrived.

        The own value takes the weights of members that are gone. Types of 16 bits are
        added in float32, and rounded once.
        """
        received = zip(self._received, self._sources, strict=True)
        rows = [(row, weight) for row, (peer, weight) in received if peer not in gone]
        own_weight = self._self_weight
        own_weight += sum(weight for peer, weight in self._sources if peer in gone)
        if is_wide := self._result.dtype.itemsize > 2:
            total = torch.mul(self._own, own_weight, out=self._result)
        else:
            total = self._own.float().mul_(own_weight)
        for row, weight in rows:
            total.add_(row, alpha=weight)
        if not is_wide:
            self._result.copy_(total)
