"""An Adasum through NCCL, as a sum with weights.

Each member gets its slice of all members' tensors, and computes the part of their inner
products that the slice gives. NCCL adds the parts. The weights of the tensors follow
from the inner products, as on the host. Each member adds the tensors in its slice with
these weights, and all gather the slices. docs/notes/nccl-backend.md has the calls.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bluecomm.ops.device_operation import DeviceOperation
from bluecomm.ops.nccl_collective import Collective
from bluecomm.ops.nccl_gather import RowExchange
from bluecomm.ops.nccl_slices import Slices
from bluecomm.ops.nccl_steps import NcclStep, WorkInSteps
from bluecomm.runtime import parameters as make_parameters

# Inner products and weighted sums convert this many elements to float64 at once.
_CHUNK = 1 << 22
# As on the host, a sum smaller than this share of its terms' magnitude counts as zero,
# because it consists of rounding errors.
_ROUNDING = 1e-13


def adasum_steps(operation: DeviceOperation) -> WorkInSteps:
    """Return the work of the calls of an Adasum.

    The splits of its parameters are the lengths of the tensors in its input.
    """
    adasum, comm = _Adasum(operation), operation.comm
    return WorkInSteps(
        adasum.slices.exchange(),
        [
            NcclStep("products", comm, adasum.products),
            NcclStep("spread", comm, adasum.spread),
        ],
    )


class _Adasum:
    """The computations on this member's slice between the calls.

    Args:
        operation: As for ``adasum_steps``.

    Attributes:
        slices: The slices of the tensors.
    """

    def __init__(self, operation: DeviceOperation) -> None:
        given, size = operation.parameters, operation.comm.size
        self._factor = given.prescale * given.postscale
        self.slices = Slices(operation)
        lengths = given.splits or (operation.source.numel(),)
        self._parts = list(self.slices.parts_of(lengths))
        # Inner products of each tensor. Elements behind the last tensor are only added.
        shape = (len(lengths), size, size)
        self._products = operation.staging.empty(shape, torch.float64)

    @torch.no_grad()
    def products(self) -> Collective:
        """Compute this member's part of the inner products; return their sum."""
        self._products.zero_()
        for tensor, begin, end in self._parts:
            if tensor < len(self._products):
                for values, _ in self._chunks(begin, end):
                    self._products[tensor] += values @ values.t()
        given = make_parameters(op="sum")
        return Collective("allreduce", "float64", self._products, self._products, given)

    @torch.no_grad()
    def spread(self) -> RowExchange:
        """Add the tensors in this member's slice; return the exchange of slices."""
        weights = adasum_weights(self._products) * self._factor
        for tensor, begin, end in self._parts:
            for values, target in self._chunks(begin, end):
                if tensor < len(weights):
                    target.copy_(torch.mv(values.t(), weights[tensor]))
                else:
                    target.copy_(values.sum(0) * self._factor)
        return self.slices.spread()

    def _chunks(
        self, begin: int, end: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield all members' values in a part of the slice, and memory for their sum.

        The values are in float64.
        """
        rows, mine = self.slices.rows()[:, begin:end], self.slices.mine[begin:end]
        step = max(1, _CHUNK // len(rows))
        for at in range(0, len(mine), step):
            yield rows[:, at : at + step].double(), mine[at : at + step]


def adasum_weights(products: torch.Tensor) -> torch.Tensor:
    """Return the weights of vectors in their Adasum; see ``ReduceOp``.

    Args:
        products: Inner products of the vectors, of shape ``(..., n, n)``.

    Returns:
        Weights of shape ``(..., n)``.
    """
    count = products.shape[-1]
    blocks = 1 << (count - 1).bit_length()
    padding = (0, blocks - count)
    # Further vectors, which are zero, make the number of vectors a power of two.
    products = torch.nn.functional.pad(products, padding * 2)
    weights = torch.ones_like(products[..., 0])
    while blocks > 1:
        terms = weights[..., :, None] * weights[..., None, :] * products
        sums, magnitudes = _by_blocks(terms, blocks), _by_blocks(terms.abs(), blocks)
        # Each block with an even number is added to the next one.
        shared = torch.diagonal(sums[..., 0::2, 1::2], dim1=-2, dim2=-1)
        squares = torch.diagonal(sums, dim1=-2, dim2=-1)
        is_zero = squares <= _ROUNDING * torch.diagonal(magnitudes, dim1=-2, dim2=-1)
        factors = 1 - shared.repeat_interleave(2, -1) / (2 * squares)
        factors = torch.where(is_zero, torch.ones_like(factors), factors)
        weights = weights * factors.repeat_interleave(weights.shape[-1] // blocks, -1)
        blocks //= 2
    return weights[..., :count]


def _by_blocks(terms: torch.Tensor, blocks: int) -> torch.Tensor:
    """Return the sums of the terms of each pair of blocks of vectors."""
    length = terms.shape[-1] // blocks
    parts = terms.reshape(*terms.shape[:-2], blocks, length, blocks, length)
    return parts.sum((-3, -1))
