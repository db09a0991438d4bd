"""The tensors that neighbors send to one another through NCCL, and their sum."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from bluecomm.device.staging import Staging
from bluecomm.ops.weighted_sum import WeightedSum

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
        weights_of_sources = [weight for _, weight in parameters.sources]
        self._sum = WeightedSum(
            *(staging, own.shape, own.dtype),
            *(parameters.self_weight, weights_of_sources),
        )
        self._senders = [peer for peer, _ in parameters.sources]
        weights = {weight for _, weight in parameters.destinations}
        self._sent = {one: own if one == 1.0 else own * one for one in weights}
        self._sends = [
            (peer, self._sent[weight].data_ptr(), own.nbytes)
            for peer, weight in parameters.destinations
            if own.nbytes
        ]
        self._receives = [
            (peer, row.data_ptr(), own.nbytes)
            for (peer, _), row in zip(
                parameters.sources, self._sum.received, strict=True
            )
            if own.nbytes
        ]

    def make_draft(
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

        The own value takes the weights of members that are gone.
        """
        missing = {i for i, peer in enumerate(self._senders) if peer in gone}
        if self._own.nbytes:
            self._sum.write(self._own, self._result, missing)
