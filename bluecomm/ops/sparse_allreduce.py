"""Sparse allreduce: every rank gets the sum or average of all ranks' sparse tensors."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from bluecomm.device.staging import Staging
from bluecomm.device.staging_table import staging_of
from bluecomm.errors import MismatchError
from bluecomm.ops.allgather import SUMMED_ROWS
from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.reduce_op import ReduceOp, choose
from bluecomm.ops.refusal import Operation, describe_refused
from bluecomm.ops.start import start_gather
from bluecomm.ops.tensor import own_staging
from bluecomm.runtime import Communicator, Handle, current_communicator
from bluecomm.runtime.handle import GroupHandle, MappedHandle

__all__ = ["sparse_allreduce", "sparse_allreduce_nonblocking"]

# The types in which half-precision values are added, so that the sum is rounded once.
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


@dataclasses.dataclass(frozen=True)
class SparseShare:
    """One rank's contribution to the sum of sparse tensors.

    Attributes:
        status: A number whose meaning the caller defines.
        shape: Shape of the tensor.
        indices: One column per entry, one row per sparse dimension.
        values: Values of the entries, as one flat tensor.

    Both tensors are on the host.
    """

    status: int
    shape: tuple[int, ...]
    indices: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor, status: int = 0) -> SparseShare:
        """Return the share of a rank with a sparse tensor; its device is waited for."""
        entries = tensor.coalesce()
        indices, values = entries.indices(), entries.values()
        if staging_of(values) is not None:
            indices, values = (_on_host(one) for one in (indices, values))
        return cls(status, tuple(tensor.shape), indices, values.reshape(-1))

    @classmethod
    def empty(
        cls, shape: Sequence[int], dtype: torch.dtype, status: int = 0
    ) -> SparseShare:
        """Return the share of a rank without a tensor; it fits every other share."""
        indices = torch.empty((0, 0), dtype=torch.int64)
        return cls(status, tuple(shape), indices, torch.empty(0, dtype=dtype))

    @property
    def kind(self) -> tuple[tuple[int, ...], int]:
        """Shape, and number of sparse dimensions."""
        return self.shape, len(self.indices)


class SparseHandle(MappedHandle[torch.Tensor]):
    """A handle that may also be called, as Horovod's scripts do, to wait for it."""

    __slots__ = ()

    def __call__(self) -> torch.Tensor:
        return self.wait()


def refused_sparse_allreduce(
    comm: Communicator, arguments: Mapping[str, Any]
) -> Iterator[Operation]:
    """Describe a refused call of ``sparse_allreduce``."""
    name = comm.name_for("sparse_allreduce", arguments.get("name"))
    return refused_sparse_gather(name)


def refused_sparse_gather(name: str) -> Iterator[Operation]:
    """Describe a call of ``start_sparse_gather`` that is not made."""
    for what in ("indices", "values"):
        yield "allgather", f"{name}.{what}", None


@describe_refused(refused_sparse_allreduce)
def _sparse_allreduce(
    form: Form,
    /,
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: Communicator | None = None,
    *,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Return the sum or average of all ranks' sparse tensors.

    The gradient of ``x_j`` is the sum, or average, of the ranks' gradients at the
    positions of its entries.

    All ranks gather the indices and values of all ranks, so the bytes that a rank
    receives depend on the number of entries, not on the dense shape. Entries on a GPU
    travel through the host, and this waits until they are there.

    Args:
        tensor: Sparse COO tensor, coalesced or not, with any number of entries, even
            none. Shape, type and number of sparse dimensions must be the same on all
            ranks. It is not modified.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        op: ``Average``, the default, which divides the sum by the number of ranks; or
            ``Sum``.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New coalesced sparse COO tensor with the shape, type and device of ``tensor``.

    Raises:
        TypeError: ``tensor`` is not a sparse COO tensor, or its type is not supported.
        ValueError: ``op`` is another reduction, or the average of integers; or
            ``tensor`` has no sparse dimension.
        RuntimeError: The current stream captures a CUDA graph.
        MismatchError: The ranks' tensors differ in shape, type or number of sparse
            dimensions.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    comm = current_communicator(process_set)
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        got = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor)
        raise TypeError(
            f"sparse_allreduce: expected a sparse COO tensor, got {got}; use allreduce "
            "for a dense tensor, and tensor.to_sparse() for other sparse layouts"
        )
    if not tensor.sparse_dim():
        raise ValueError(
            "sparse_allreduce: expected at least one sparse dimension, got none (shape "
            f"{tuple(tensor.shape)}); use allreduce with tensor.to_dense()"
        )
    word = choose("sparse_allreduce", None, op, tensor.dtype)
    if word not in ("average", "sum"):
        raise ValueError(
            f"sparse_allreduce: op must be bluecomm.Average or Sum, got {op!r}"
        )
    staging = own_staging("sparse_allreduce", tensor)
    if staging is not None:
        staging.point()  # raises on a stream that captures a graph
    share = SparseShare.of(tensor)
    name = comm.name_for("sparse_allreduce", name)
    gathered = start_sparse_gather(comm, share, form, name=name, timeout_s=timeout_s)

    def finish(shares: list[SparseShare]) -> torch.Tensor:
        _check_equal_kinds(comm, name, shares)
        total = sparse_total(shares, len(shares) if word == "average" else 1)
        return total if staging is None else on_device(staging, total)

    return SparseHandle(gathered, finish)


sparse_allreduce = blocking(_sparse_allreduce)
sparse_allreduce_nonblocking = nonblocking(
    _sparse_allreduce, "Calling the handle waits for it, as in Horovod."
)


def start_sparse_gather(
    comm: Communicator,
    share: SparseShare,
    form: Form,
    *,
    name: str,
    timeout_s: float | None = None,
) -> Handle[list[SparseShare]]:
    """Start gathering the shares of all members, in order.

    The dtypes of the values must be equal; the caller compares all else.
    """
    dims, ndim = len(share.indices), len(share.shape)
    head = torch.tensor([share.status, dims, ndim, *share.shape])
    positions = torch.cat([head, share.indices.reshape(-1)])
    together = comm.begin_together(f"sparse.{name}", 2, in_background=not form.blocking)
    with together or contextlib.nullcontext():
        both = GroupHandle(
            [
                start_gather(
                    comm,
                    "allgather",
                    flat,
                    form,
                    name=f"{name}.{what}",
                    timeout_s=timeout_s,
                    adjoint=SUMMED_ROWS,
                )
                for what, flat in (("indices", positions), ("values", share.values))
            ]
        )

    def finish(
        gathered: list[tuple[torch.Tensor, list[int]]],
    ) -> list[SparseShare]:
        positions, values = (torch.split(flat, rows) for flat, rows in gathered)
        return [_parsed(p, v) for p, v in zip(positions, values, strict=True)]

    return MappedHandle(both, finish)


def sparse_total(shares: Sequence[SparseShare], divisor: int) -> torch.Tensor:
    """Return the sum of shares of the same kind over ``divisor``, coalesced.

    Values are added in the order of the shares, so all ranks get the same bits.
    """
    shape, dims = shares[0].kind
    dtype = shares[0].values.dtype
    values = torch.cat([share.values for share in shares]).to(_WIDE.get(dtype, dtype))
    total = torch.sparse_coo_tensor(
        torch.cat([share.indices for share in shares], dim=1),
        values.view(-1, *shape[dims:]),
        shape,
        check_invariants=False,
    ).coalesce()
    if divisor != 1:
        total = total / divisor
    return total.to(dtype)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the host, through which gradients pass."""
    values = torch.empty(tensor.shape, dtype=tensor.dtype)
    values.copy_(tensor)
    return values


def on_device(staging: Staging, total: torch.Tensor) -> torch.Tensor:
    """Return a copy of a coalesced tensor on a device; gradients pass through it."""
    indices, values = (
        staging.empty(one.shape, one.dtype).copy_(one)
        for one in (total.indices(), total.values())
    )
    return torch.sparse_coo_tensor(
        indices, values, total.shape, is_coalesced=True, check_invariants=False
    )


def _parsed(positions: torch.Tensor, values: torch.Tensor) -> SparseShare:
    status, dims, ndim = positions[:3].tolist()
    shape = tuple(positions[3 : 3 + ndim].tolist())
    indices = positions[3 + ndim :]
    count = len(indices) // dims if dims else 0
    return SparseShare(status, shape, indices.view(dims, count), values)


def _check_equal_kinds(
    comm: Communicator, name: str, shares: Sequence[SparseShare]
) -> None:
    first = shares[0]
    for rank, share in zip(comm.ranks_left, shares, strict=False):
        if share.kind != first.kind:
            raise MismatchError.describe(
                f"ranks {comm.ranks_left[0]} and {rank} have different sparse tensors",
                operation="sparse_allreduce",
                name=name,
                rank=comm.world.rank,
                peers=(comm.ranks_left[0], rank),
                expected="shape {}, {} sparse dimensions".format(*first.kind),
                got="shape {}, {} sparse dimensions".format(*share.kind),
                remedy="Pass tensors of the same shape and number of sparse dimensions",
            )
