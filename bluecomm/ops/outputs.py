"""Checks the memory that a caller gives for a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from bluecomm.device.staging_table import staging_of
from bluecomm.ops.autograd.nodes import is_tracked
from bluecomm.ops.overlaps import any_overlap
from bluecomm.runtime import Communicator, current_communicator

# One tensor for all rows, or one for the rows of each rank.
Out = torch.Tensor | Sequence[torch.Tensor]


def check_out(
    operation: str,
    tensor: torch.Tensor,
    out: object,
    row_shape: Sequence[int],
    rows: int | None = None,
) -> torch.Tensor:
    """Return ``out`` if an operation can write its result there.

    Args:
        operation: Name of the operation, for error texts.
        tensor: Input of the operation.
        out: Tensor that the caller gave.
        row_shape: Shape of the result without dimension 0.
        rows: Length of dimension 0; ``None`` if only the other ranks know it.

    Raises:
        TypeError: ``out`` is not a tensor.
        ValueError: It has another type, shape or device, is not contiguous, or autograd
            would have to record the operation.
    """
    _check_memory(operation, tensor, out)
    assert isinstance(out, torch.Tensor)
    has_shape = (
        out.dim() == len(row_shape) + 1
        and out.shape[1:] == torch.Size(row_shape)
        and rows in (None, out.shape[0])
    )
    if out.dtype is not tensor.dtype or not has_shape:
        expected = ", ".join(map(str, ["rows" if rows is None else rows, *row_shape]))
        raise _misfit(operation, tensor, out, expected)
    return out


def check_out_like(
    operation: str, tensor: torch.Tensor, out: object, *, anywhere: bool = False
) -> torch.Tensor:
    """Return ``out`` if a result like ``tensor`` can be written there.

    Args:
        operation: As in ``check_out``.
        tensor: Input of the operation, or its result.
        out: As in ``check_out``.
        anywhere: Whether ``out`` may be on another device than ``tensor``.

    Raises:
        TypeError: ``out`` is not a tensor.
        ValueError: As in ``check_out``.
    """
    _check_memory(operation, tensor, out, anywhere=anywhere)
    assert isinstance(out, torch.Tensor)
    if out.dtype is not tensor.dtype or out.shape != tensor.shape:
        raise _misfit(operation, tensor, out, ", ".join(map(str, tensor.shape)))
    return out


def check_out_at_root(operation: str, comm: Communicator, root: int, out: Any) -> None:
    """Raise if a rank that gets no result has given memory for it.

    Raises:
        ValueError: It has.
    """
    if out is not None and comm.rank != root:
        raise ValueError(
            f"{operation}: only the root, rank {comm.ranks[root]}, gets a result; omit "
            f"out on rank {comm.world.rank}"
        )


def require_out(operation: str, out: object) -> torch.Tensor:
    """Return the memory that a caller gave for a result.

    Raises:
        TypeError: It is not a tensor.
    """
    if not isinstance(out, torch.Tensor):
        raise TypeError(
            f"{operation}: out must be a torch.Tensor, got {type(out).__name__}"
        )
    return out


def _misfit(
    operation: str, tensor: torch.Tensor, out: torch.Tensor, expected: str
) -> ValueError:
    return ValueError(
        f"{operation}: out must have type {tensor.dtype} and shape ({expected}), "
        f"got {out.dtype} and {tuple(out.shape)}"
    )


def _check_memory(
    operation: str, tensor: torch.Tensor, out: object, *, anywhere: bool = False
) -> None:
    out = require_out(operation, out)
    if is_tracked(tensor) or is_tracked(out):
        raise ValueError(
            f"{operation}: out cannot be given for a tensor that requires grad, "
            "because no gradient passes through it; omit out, or call the operation "
            "under torch.no_grad()"
        )
    staging = staging_of(out)
    if not anywhere and staging is not staging_of(tensor):
        rank = current_communicator().world.rank
        raise ValueError(
            f"{operation} on rank {rank}: out must be on {tensor.device}, as the "
            f"tensor is, got one on {out.device}; move it with .to() first"
        )
    is_reachable = out.is_cpu or staging is not None
    is_dense = is_reachable and out.layout is torch.strided
    if not is_dense or out.is_neg() or out.is_conj():
        raise ValueError(
            f"{operation}: out must be a dense CPU tensor that owns its values, got "
            f"one on {out.device} with layout {out.layout}"
        )
    if not out.is_contiguous():
        raise ValueError(
            f"{operation}: out must be contiguous, got strides {out.stride()} for "
            f"shape {tuple(out.shape)}"
        )


def stacked_outputs(
    operation: str, tensor: torch.Tensor, out: Out, size: int
) -> list[torch.Tensor]:
    """Return the tensors of ``out`` for rows of the shape of those of ``tensor``.

    Raises:
        TypeError: As in ``check_out``.
        ValueError: As in ``check_out``, or ``out`` is not one tensor per rank, or two
            of them share memory.
    """
    row_shape = tensor.shape[1:]
    if isinstance(out, torch.Tensor):
        return [check_out(operation, tensor, out, row_shape)]
    if not isinstance(out, Sequence) or len(out) != size:
        got = len(out) if isinstance(out, Sequence) else type(out).__name__
        raise ValueError(
            f"{operation}: out must be one tensor, or one for each of {size} ranks, "
            f"got {got}"
        )
    outputs = [check_out(operation, tensor, one, row_shape) for one in out]
    # The engine checks those of the host.
    if staging_of(tensor) is not None and any_overlap(outputs):
        raise ValueError(
            f"{operation}: expected outputs that do not overlap, got two that share "
            "memory"
        )
    return outputs


def written(out: Any) -> Any:
    """Return ``out``, into which the engine has written unseen by autograd."""
    increment_version(out)
    return out
