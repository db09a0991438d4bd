"""Slices of a tensor: each member computes one from the values of all members."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from bluecomm.ops.device_operation import DeviceOperation
from bluecomm.ops.nccl_gather import RowExchange
from bluecomm.ops.splits import share_of


class Slices:
    """The slices of a tensor, of which each member has values of its own.

    Args:
        operation: An allreduce.

    Attributes:
        mine: Contiguous memory of this member's slice of the result.
    """

    def __init__(self, operation: DeviceOperation) -> None:
        comm, staging, source = operation.comm, operation.staging, operation.source
        self._members = range(comm.size)
        self._source, self._result = source.view(-1), operation.result.view(-1)
        count = source.numel()
        self._counts = [share_of(count, comm.size, one) for one in self._members]
        offsets = list(itertools.accumulate(self._counts, initial=0))
        self._slices = dict(enumerate(zip(offsets, self._counts, strict=False)))
        self._begin, self._count = self._slices[comm.rank]
        self._values = staging.empty((comm.size * self._count,), source.dtype)
        self.mine = staging.empty((self._count,), source.dtype)

    def exchange(self) -> RowExchange:
        """Return the exchange after which ``rows`` has the values of all members."""
        return RowExchange(
            self._source,
            self._slices,
            self._values,
            self._members,
            [self._count] * len(self._members),
            gathers=False,
            copies=(),
        )

    def rows(self) -> torch.Tensor:
        """Return the values of all members in this member's slice, one in each row."""
        return self._values.view(len(self._members), self._count)

    def spread(self) -> RowExchange:
        """Return the exchange after which the result has the slices of all members."""
        return RowExchange(
            self.mine,
            dict.fromkeys(self._members, (0, self._count)),
            self._result,
            self._members,
            self._counts,
            gathers=True,
            copies=(),
        )

    def parts_of(self, lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield the tensors that have elements in this member's slice.

        Args:
            lengths: Number of elements of each tensor, which follow one another.

        Yields:
            The tensor's number, and where its part begins and ends in the slice. The
            elements behind the last tensor count as one more tensor.
        """
        end = self._begin + self._count
        bounds = [*itertools.accumulate(lengths, initial=0), self._source.numel()]
        for tensor, (first, behind) in enumerate(itertools.pairwise(bounds)):
            begin, stop = max(first, self._begin), min(behind, end)
            if begin < stop:
                yield tensor, begin - self._begin, stop - self._begin
