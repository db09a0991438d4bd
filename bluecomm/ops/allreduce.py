"""Allreduce: every rank gets the reduction of all ranks' tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from bluecomm.compression import Compression, Compressor, check_compressor
from bluecomm.ops.forms import (
    BLOCKING,
    NONBLOCKING_IN_PLACE,
    Form,
    blocking_in_place,
    nonblocking,
    nonblocking_in_place,
)
from bluecomm.ops.reduce_op import Adasum, ReduceOp, choose
from bluecomm.ops.start import start
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters

if TYPE_CHECKING:
    from bluecomm._native import Parameters

__all__ = ["allreduce", "allreduce_", "allreduce_nonblocking", "allreduce_nonblocking_"]


def _allreduce(
    form: Form,
    /,
    tensor: torch.Tensor,
    average: bool | None = None,
    is_hierarchical_local: bool = False,
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    comm = current_communicator(process_set)
    if not isinstance(is_hierarchical_local, bool):
        raise TypeError(
            "allreduce: is_hierarchical_local must be True or False, got "
            f"{is_hierarchical_local!r}; pass the name as name="
        )
    # start() rejects objects that are no tensors.
    dtype = tensor.dtype if isinstance(tensor, torch.Tensor) else torch.float32
    reduction = choose("allreduce", average, op, dtype)
    if not (prescale_factor == postscale_factor == 1.0 or dtype.is_floating_point):
        raise ValueError(
            f"allreduce: factors need a floating-point type, got {dtype}; "
            "convert with .float() first"
        )
    return start(
        comm,
        "allreduce",
        tensor,
        form,
        name=name,
        timeout_s=timeout_s,
        parameters=_parameters(
            reduction,
            float(prescale_factor),
            float(postscale_factor),
            is_hierarchical_local,
        ),
    )


allreduce_nonblocking = nonblocking(_allreduce)
allreduce_ = blocking_in_place(
    _allreduce,
    "Write the reduction of ``tensor`` over all ranks to ``tensor`` and return it.",
)
allreduce_nonblocking_ = nonblocking_in_place(_allreduce)


# Written out, because this form alone compresses.
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    is_hierarchical_local: bool = False,
    name: str | None = None,
    *,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> torch.Tensor:
    """Return the reduction of ``tensor`` over all ranks; every rank gets the same bits.

    Average: ``postscale * (1 / n) * sum_i (prescale * x_i)``; likewise for the other
    reductions, without ``1 / n``. The sum runs in ascending order of ranks where one
    rank reduces, so it does not depend on who comes first. ``Adasum`` is described in
    ``ReduceOp``.

    Args:
        tensor: Any shape; shape and type must be the same on all ranks. Not modified.
        average: ``True`` for the average (the default), ``False`` for the sum.
        is_hierarchical_local: Reduce among the ranks of this machine only.
        name: Name under which the ranks' calls find each other. Default: the order of
            the calls without a name.
        compression: ``Compression.fp16`` sends 16-bit numbers.
        op: Reduction, instead of ``average``.
        prescale_factor: Factor before the reduction (floating-point types).
        postscale_factor: Factor after it (floating-point types).
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds until the operation fails. Default: the configured one.

    Returns:
        New tensor with the shape and type of ``tensor``.

    Raises:
        TypeError: Not a tensor, or of a type that is not supported; or
            ``is_hierarchical_local`` is no bool or ``compression`` no compressor.
        ValueError: Average, adasum or factors with a type that is no floating-point
            type, or both ``average`` and ``op``.
        MismatchError: The ranks called it with differing arguments.
        PeerLostError: A rank is gone.
        CommunicationTimeout: Some ranks did not come in time; the text names them.
    """
    compressed, context = check_compressor(compression).compress(tensor)
    result = _allreduce(
        BLOCKING,
        compressed,
        average,
        is_hierarchical_local,
        name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        timeout_s=timeout_s,
    ).wait()
    return compression.decompress(result, context)


def allreduce_parts_nonblocking_(
    tensor: torch.Tensor,
    lengths: Sequence[int],
    *,
    op: ReduceOp,
    name: str,
    process_set: Communicator,
) -> Handle[torch.Tensor]:
    """Start ``allreduce_`` of a tensor that holds several and return a handle at once.

    Args:
        tensor: As in ``allreduce_nonblocking_``.
        lengths: Elements of each of the tensors in it, which follow one another. With
            ``Adasum`` each has weights of its own, and what is behind them is summed;
            the other reductions take no notice.
        op: Reduction.
        name: As in ``allreduce``.
        process_set: As in ``allreduce``.

    Returns:
        Handle of ``tensor``.
    """
    return start(
        process_set,
        "allreduce",
        tensor,
        NONBLOCKING_IN_PLACE,
        name=name,
        timeout_s=None,
        parameters=parameters(
            op=choose("allreduce", None, op, tensor.dtype),
            splits=tuple(lengths) if op is Adasum else (),
        ),
    )


# Looked up by position, in less time than by keyword.
@functools.lru_cache(maxsize=64)
def _parameters(
    op: str, prescale: float, postscale: float, is_local: bool
) -> Parameters:
    return parameters(
        op=op, prescale=prescale, postscale=postscale, local_only=is_local
    )
