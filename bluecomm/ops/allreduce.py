"""Allreduce: every rank gets the reduction of all ranks' tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from bluecomm.compression import Compression, Compressor, check_compressor
from bluecomm.ops.reduce_op import Adasum, ReduceOp, choose
from bluecomm.ops.start import start
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters

if TYPE_CHECKING:
    from bluecomm._native import Parameters

__all__ = ["allreduce", "allreduce_", "allreduce_nonblocking", "allreduce_nonblocking_"]


def allreduce_nonblocking(
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
    """Start ``allreduce`` and return a handle at once.

    ``tensor`` must not change before the handle has been waited for. Arguments, result
    and errors are those of ``allreduce``.
    """
    return _start(
        tensor,
        average,
        is_hierarchical_local,
        name,
        op,
        (prescale_factor, postscale_factor),
        process_set,
        timeout_s,
        in_place=False,
    )


def allreduce_nonblocking_(
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
    """Start ``allreduce_`` and return a handle at once.

    ``tensor`` must not be used before the handle has been waited for. Arguments,
    result and errors are those of ``allreduce``.
    """
    return _start(
        tensor,
        average,
        is_hierarchical_local,
        name,
        op,
        (prescale_factor, postscale_factor),
        process_set,
        timeout_s,
        in_place=True,
    )


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
    result = _start(
        compressed,
        average,
        is_hierarchical_local,
        name,
        op,
        (prescale_factor, postscale_factor),
        process_set,
        timeout_s,
        in_place=False,
        waits=True,
    ).wait()
    return compression.decompress(result, context)


def allreduce_(
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
) -> torch.Tensor:
    """Write the reduction of ``tensor`` over all ranks to ``tensor`` and return it.

    Arguments and errors are those of ``allreduce``.
    """
    return _start(
        tensor,
        average,
        is_hierarchical_local,
        name,
        op,
        (prescale_factor, postscale_factor),
        process_set,
        timeout_s,
        in_place=True,
        waits=True,
    ).wait()


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
        name=name,
        timeout_s=None,
        in_place=True,
        parameters=parameters(
            op=choose("allreduce", None, op, tensor.dtype),
            splits=tuple(lengths) if op is Adasum else (),
        ),
    )


def _start(
    tensor: torch.Tensor,
    average: bool | None,
    is_local: bool,
    name: str | None,
    op: ReduceOp | None,
    factors: tuple[float, float],
    process_set: Communicator | None,
    timeout_s: float | None,
    *,
    in_place: bool,
    waits: bool = False,
) -> Handle[torch.Tensor]:
    comm = current_communicator(process_set)
    if not isinstance(is_local, bool):
        raise TypeError(
            "allreduce: is_hierarchical_local must be True or False, got "
            f"{is_local!r}; pass the name as name="
        )
    # What is no tensor at all, start refuses.
    dtype = tensor.dtype if isinstance(tensor, torch.Tensor) else torch.float32
    reduction = choose("allreduce", average, op, dtype)
    if factors != (1.0, 1.0) and not dtype.is_floating_point:
        raise ValueError(
            f"allreduce: factors need a floating-point type, got {dtype}; "
            "convert with .float() first"
        )
    return start(
        comm,
        "allreduce",
        tensor,
        name=name,
        timeout_s=timeout_s,
        in_place=in_place,
        parameters=_parameters(
            reduction, float(factors[0]), float(factors[1]), is_local
        ),
        waits=waits,
    )


# Looked up by position, in less time than by keyword.
@functools.lru_cache(maxsize=64)
def _parameters(
    op: str, prescale: float, postscale: float, is_local: bool
) -> Parameters:
    return parameters(
        op=op, prescale=prescale, postscale=postscale, local_only=is_local
    )
