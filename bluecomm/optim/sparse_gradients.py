"""Exchanges sparse gradients, such as those of embeddings with ``sparse=True``.

Buckets hold dense gradients only. All ranks gather the indices and values of a sparse
gradient, and each rank adds them up.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from bfrun.wording import format_ranks
from bluecomm.errors import MismatchError
from bluecomm.ops.allreduce import allreduce_nonblocking_
from bluecomm.ops.forms import NONBLOCKING
from bluecomm.ops.reduce_op import Adasum, Average
from bluecomm.ops.refusal import Operation, refuse
from bluecomm.ops.sparse_allreduce import (
    SparseShare,
    on_device,
    refused_sparse_gather,
    sparse_total,
    start_sparse_gather,
)
from bluecomm.optim.algorithm import Context
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.dense_only import sparse_error
from bluecomm.runtime import Handle
from bluecomm.runtime.handle import wait_all

Position = tuple[Bucket, int]


class _Status(enum.IntEnum):
    """The state of a parameter's gradient on one rank."""

    JOINED = 0  # the rank is out of data
    NO_GRADIENT = 1
    SPARSE = 2
    DENSE = 3


def sparse_parameters(models: Iterable[nn.Module]) -> frozenset[int]:
    """Return the ids of the parameters that layers with ``sparse=True`` hold."""
    return frozenset(
        id(module.weight)
        for model in models
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    )


def make_dense(parameters: Iterable[torch.Tensor]) -> None:
    """Replace sparse gradients by dense ones."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            parameter.grad = parameter.grad.to_dense()


class SparseGradients:
    """The exchanges of one optimizer's sparse gradients."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._under_way: list[tuple[Position, Handle[list[SparseShare]]]] = []

    def check(self, bucket: Bucket, position: int) -> None:
        """Raise if the sparse gradients of a parameter cannot be combined.

        Raises:
            ValueError: The reduction is Adasum.
        """
        name = bucket.slots[position].name
        if self._context.options.op is Adasum:
            raise sparse_error("op=bluecomm.Adasum", name, instead="Average")

    def start(self, bucket: Bucket, position: int, *, is_active: bool) -> None:
        """Start the exchange of one parameter's gradient.

        Entries on a device travel through the host, which waits for them.

        Args:
            bucket: Bucket of the parameter.
            position: Position of the parameter in the bucket.
            is_active: Whether this rank has data.
        """
        try:
            self.check(bucket, position)
        except ValueError as error:
            refuse(self._context.comm, self.refused(bucket, position), error)
            raise
        bucket.gradients.follow_sparse_streams()
        share = _share_of(bucket.slots[position].parameter, is_active=is_active)
        values, _ = self._context.options.compression.compress(share.values)
        handle = start_sparse_gather(
            self._context.comm,
            dataclasses.replace(share, values=values),
            NONBLOCKING,
            name=_name_of(bucket, position),
        )
        self._under_way.append(((bucket, position), handle))

    def refused(self, bucket: Bucket, position: int) -> Iterator[Operation]:
        """Describe the exchange of one parameter's gradient that is not started."""
        return refused_sparse_gather(_name_of(bucket, position))

    def abandon(self) -> None:
        """Forget the exchanges under way, because their round has failed."""
        self._under_way.clear()

    def finish(self, *, is_active: bool) -> dict[Position, bool]:
        """Wait for all exchanges, and replace the gradients by their results.

        Args:
            is_active: Whether this rank has data; if not, no gradient is changed.

        Returns:
            For each parameter with a gradient on any rank, whether it is sparse.

        Raises:
            MismatchError: A gradient is sparse on one rank and dense on another.
        """
        under_way, self._under_way = self._under_way, []
        gathered = wait_all([handle for _, handle in under_way])
        found: dict[Position, bool] = {}
        for ((bucket, position), _), shares in zip(under_way, gathered, strict=True):
            parameter = bucket.slots[position].parameter
            present = self._check(bucket.slots[position].name, shares)
            gradient = None
            if present:
                is_sparse = present[0].status == _Status.SPARSE
                found[bucket, position] = is_sparse
                combine = self._sparse_result if is_sparse else self._dense_result
                gradient = combine(bucket, position, shares, is_active)
            if is_active:
                parameter.grad = gradient
        return found

    def _check(self, name: str, shares: Sequence[SparseShare]) -> list[SparseShare]:
        """Return the shares with a gradient, which must be of one kind."""
        kinds: dict[tuple[str, int], list[int]] = {}
        comm = self._context.comm
        for rank, share in zip(comm.ranks_left, shares, strict=False):
            if share.status >= _Status.SPARSE:
                word = _Status(share.status).name.lower()
                kinds.setdefault((word, len(share.indices)), []).append(rank)
        if len(kinds) > 1:
            parts = [
                f"{word}{f' in {dims} dimensions' if dims else ''} on "
                f"{format_ranks(ranks, noun=True)}"
                for (word, dims), ranks in sorted(kinds.items())
            ]
            raise MismatchError.describe(
                f"the gradient of this parameter is {', and '.join(parts)}",
                operation="gradient_allreduce",
                name=name,
                rank=comm.world.rank,
                peers=sorted(rank for ranks in kinds.values() for rank in ranks),
                remedy="Make it the same on all ranks, or pass sparse_as_dense=True to "
                "DistributedOptimizer",
            )
        return [share for share in shares if share.status >= _Status.SPARSE]

    def _divisor(self, shares: Sequence[SparseShare]) -> int:
        if self._context.options.op is not Average:
            return 1
        return sum(share.status != _Status.JOINED for share in shares)

    def _sparse_result(
        self,
        bucket: Bucket,
        position: int,
        shares: Sequence[SparseShare],
        is_active: bool,
    ) -> torch.Tensor | None:
        if not is_active:
            return None
        present = [
            dataclasses.replace(share, values=share.values.to(bucket.dtype))
            for share in shares
            if share.status == _Status.SPARSE
        ]
        total = sparse_total(present, self._divisor(shares))
        return total if bucket.staging is None else on_device(bucket.staging, total)

    def _dense_result(
        self,
        bucket: Bucket,
        position: int,
        shares: Sequence[SparseShare],
        is_active: bool,
    ) -> torch.Tensor:
        """Exchange a dense gradient where a sparse one was expected."""
        slot, options = bucket.slots[position], self._context.options
        gradient = slot.parameter.grad if is_active else None
        if gradient is None:
            gradient = torch.zeros_like(slot.parameter)
        sent, kept = options.compression.compress(gradient)
        allreduced = allreduce_nonblocking_(
            sent,
            op=options.op,
            name=f"{bucket.name}.{position}.dense",
            process_set=self._context.comm,
        ).wait()
        result = options.compression.decompress(allreduced, kept)
        if options.op is Average and self._divisor(shares) < len(shares):
            result.mul_(len(shares) / self._divisor(shares))
        return result


def _name_of(bucket: Bucket, position: int) -> str:
    return f"{bucket.name}.{position}.sparse"


def _share_of(parameter: torch.Tensor, *, is_active: bool) -> SparseShare:
    gradient = parameter.grad if is_active else None
    if gradient is not None and gradient.layout is torch.sparse_coo:
        return SparseShare.of(gradient.detach(), _Status.SPARSE)
    status = _Status.JOINED if not is_active else _Status.NO_GRADIENT
    if gradient is not None:
        status = _Status.DENSE
    return SparseShare.empty(parameter.shape, parameter.dtype, status)
