"""Reductions to one member each, through NCCL: reduce, and uneven reducescatter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from bluecomm.ops.nccl_factors import postscale_, prescaled
from bluecomm.ops.splits import share_of
from bluecomm.runtime import Communicator

if TYPE_CHECKING:
    from bluecomm._native import NcclCall, NcclGroup, NcclQueue, Parameters


class NcclReductions:
    """Reductions to one member each, all at once.

    Args:
        dtype: The engine's name of the element type.
        source: Contiguous tensor on the device.
        counts: Elements of ``source`` for each root, one after another.
        destination: Contiguous tensor for the elements of this member.
        member: Number of this member.
        parameters: Factors and reduction, as in ``Collective``.
    """

    def __init__(
        self,
        dtype: str,
        source: torch.Tensor,
        counts: Mapping[int, int],
        destination: torch.Tensor,
        member: int,
        parameters: Parameters,
    ) -> None:
        self._dtype = dtype
        self._source = prescaled(source, parameters)
        self._counts = counts
        self._destination = destination
        self._member = member
        self._parameters = parameters

    def make_draft(
        self, queue: NcclQueue, group: NcclGroup, stream: int, limit_s: float
    ) -> NcclCall:
        """See ``NcclWork``."""
        begin, reductions = self._source.data_ptr(), []
        for root, count in self._counts.items():
            if count:
                to = self._destination.data_ptr() if root == self._member else 0
                reductions.append((root, begin, to, count))
            begin += count * self._source.element_size()
        return queue.make_reduction(
            group=group,
            reductions=reductions,
            dtype=self._dtype,
            op=self._parameters.op,
            stream=stream,
            limit_s=limit_s,
        )

    def complete(self, gone: Collection[int]) -> None:
        """Apply the factor after the reduction."""
        postscale_(self._destination, self._parameters)


def rows_of_members(
    comm: Communicator, shape: torch.Size, parameters: Parameters
) -> Sequence[int]:
    """Return how many rows of a tensor a reducescatter gives to each member."""
    if parameters.splits:
        return parameters.splits
    return [share_of(shape[0], comm.size, member) for member in range(comm.size)]
