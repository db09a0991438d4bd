"""Reduce: one rank gets the reduction of all ranks' tensors."""

from __future__ import annotations

import torch

from bluecomm.ops.autograd.adjoint import Adjoint, Forward
from bluecomm.ops.broadcast import broadcast_nonblocking
from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.outputs import check_out_at_root, check_out_like, written
from bluecomm.ops.reduce_op import ReduceOp, check_factors, choose
from bluecomm.ops.roots import member_of
from bluecomm.ops.start import start
from bluecomm.ops.tensor import require_tensor
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.handle import MappedHandle

__all__ = ["reduce", "reduce_nonblocking"]


def _reduce(
    form: Form,
    /,
    tensor: torch.Tensor,
    root_rank: int,
    op: ReduceOp | None = None,
    name: str | None = None,
    process_set: Communicator | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    out: torch.Tensor | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Return the reduction of ``tensor`` over all ranks on rank ``root_rank``.

    The result is that of ``allreduce``; the other ranks get an empty tensor. The
    gradient of each ``x_j`` is the gradient of the root's result, times the factors;
    for the average, divided by ``n``. ``Min``, ``Max`` and ``Product`` have no gradient
    here; use ``allreduce``.

    Args:
        tensor: Tensor of any shape; shape and type must be the same on all ranks. It is
            not modified.
        root_rank: Rank that gets the result. It must be the same on all ranks.
        op: Reduction. Default: the average.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        prescale_factor: Factor before the reduction, for floating-point types.
        postscale_factor: Factor after the reduction, for floating-point types.
        out: Contiguous tensor like ``tensor`` for the result, on the root. No gradient
            passes through it.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New tensor with the shape and type of ``tensor`` on the root, or ``out``; a
        tensor without elements on the other ranks.

    Raises:
        TypeError: ``tensor`` is not a tensor, or its type is not supported.
        ValueError: ``root_rank`` is not a member of the process set; an average or a
            factor is requested for a type that is not a floating-point type; or
            ``tensor`` requires grad and ``op`` has no gradient, or ``out`` is given;
            or ``out`` has another type or shape, or is given on another rank.
        MismatchError: The ranks called the operation with different arguments.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    comm = current_communicator(process_set)
    root = member_of("reduce", "root_rank", root_rank, comm)
    require_tensor("reduce", tensor)
    reduction = choose("reduce", None, op, tensor.dtype)
    check_factors("reduce", tensor.dtype, prescale_factor, postscale_factor)
    check_out_at_root("reduce", comm, root, out)
    if out is not None:
        check_out_like("reduce", tensor, out)
    output = out
    if comm.rank != root:
        output = tensor.new_empty(0)
    reduced = start(
        comm,
        "reduce",
        tensor,
        form,
        name=name,
        timeout_s=timeout_s,
        output=output,
        parameters=parameters(
            op=reduction,
            prescale=float(prescale_factor),
            postscale=float(postscale_factor),
            root=root,
        ),
        adjoint=_FROM_ROOT if reduction in ("sum", "average") else None,
    )
    return reduced if out is None else MappedHandle(reduced, written)


reduce = blocking(_reduce)
reduce_nonblocking = nonblocking(_reduce)


def _start_from_root(forward: Forward, gradient: torch.Tensor) -> Handle[torch.Tensor]:
    """Return ``gx_j = factor * gy_root``."""
    given, comm = forward.parameters, forward.comm
    assert given is not None
    factor = given.prescale * given.postscale
    if given.op == "average":
        factor /= comm.size
    if comm.rank != given.root:
        # The sum of no elements: the gradient of this gradient passes through it.
        gradient = gradient.new_zeros(tuple(forward.shape)) + gradient.sum()
    everywhere = broadcast_nonblocking(
        gradient,
        comm.ranks[given.root],
        forward.name,
        process_set=comm,
        timeout_s=forward.timeout_s,
    )
    if factor == 1.0:
        return everywhere
    return MappedHandle(everywhere, lambda value: value * factor)


_FROM_ROOT = Adjoint(_start_from_root)
