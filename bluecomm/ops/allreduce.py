"""Allreduce: every rank gets the reduction of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from bluecomm.compression import Compression, Compressor, check_compressor
from bluecomm.ops.alone import unchanged
from bluecomm.ops.autograd.adjoint import Adjoint, Forward
from bluecomm.ops.forms import (
    BLOCKING,
    BLOCKING_IN_PLACE,
    NONBLOCKING,
    NONBLOCKING_IN_PLACE,
    Form,
    blocking_in_place,
    nonblocking,
    nonblocking_in_place,
)
from bluecomm.ops.gradient_by_values import GRADIENT_BY_VALUES
from bluecomm.ops.reduce_op import Adasum, ReduceOp, choose, reduction
from bluecomm.ops.refusal import Operation, describe_refused, refuse_form
from bluecomm.ops.start import start
from bluecomm.ops.tensor import require_tensor
from bluecomm.ops.unfit_calls import refuse_unfit_calls
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters

if TYPE_CHECKING:
    from bluecomm._native import Gate

__all__ = ["allreduce", "allreduce_", "allreduce_nonblocking", "allreduce_nonblocking_"]


def _refused(comm: Communicator, arguments: Mapping[str, Any]) -> Iterator[Operation]:
    third = arguments["is_hierarchical_local"]
    name = third if isinstance(third, str) else arguments["name"]
    comm = _group_of_refused(comm, arguments)
    yield "allreduce", comm.name_for("allreduce", name), None


def _group_of_refused(comm: Communicator, arguments: Mapping[str, Any]) -> Communicator:
    return _members_of_call(comm, arguments["is_hierarchical_local"] is True)


def _members_of_call(comm: Communicator, is_local: bool) -> Communicator:
    """Return the communicator of a call, which may need this machine's ranks only."""
    if is_local and comm.included and comm.machine_size > 1 and comm.has_subgroups:
        return comm.machine_group
    return comm


@describe_refused(_refused, _group_of_refused)
def _allreduce(
    form: Form,
    /,
    tensor: torch.Tensor,
    average: bool | None = None,
    is_hierarchical_local: bool | str = False,
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
        name, is_hierarchical_local = _name_in_third_place(is_hierarchical_local, name)
    comm = _members_of_call(comm, is_hierarchical_local)
    require_tensor("allreduce", tensor)
    word, given = reduction(
        "allreduce",
        # 0 is equal to False, but has always meant the average.
        None if average is None else average is not False,
        op,
        tensor.dtype,
        float(prescale_factor),
        float(postscale_factor),
        is_hierarchical_local,
    )
    if (
        comm.is_alone
        and form is BLOCKING_IN_PLACE
        and prescale_factor == 1.0 == postscale_factor
        and timeout_s is None
        and isinstance(name := comm.name_for("allreduce", name), str)
        and (done := unchanged(comm, tensor)) is not None
    ):
        return done
    return start(
        comm,
        "allreduce",
        tensor,
        form,
        name=name,
        timeout_s=timeout_s,
        parameters=given,
        adjoint=_ADJOINTS.get(word),
    )


allreduce_nonblocking = nonblocking(_allreduce)
allreduce_ = blocking_in_place(
    _allreduce,
    "Write the reduction of ``tensor`` over all ranks to ``tensor`` and return it.",
)
allreduce_nonblocking_ = nonblocking_in_place(_allreduce)


# Not derived, because only this form takes `compression`.
@refuse_unfit_calls(
    _refused,
    lambda arguments: _group_of_refused(
        current_communicator(arguments.get("process_set")), arguments
    ),
)
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    is_hierarchical_local: bool | str = False,
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

    The average is ``postscale * (1 / n) * sum_i (prescale * x_i)``; the other
    reductions do not have the factor ``1 / n``. Wherever a rank adds values, it adds
    them in ascending order of ranks, so the result does not depend on timing; NCCL
    chooses an order of its own. Ranks that send partial sums, which have the type of
    ``tensor``, may return an average that differs in its last bits from a value on
    which all ranks agree. Sums and products of integers that overflow ``tensor``'s type
    wrap around, as torch's do. ``ReduceOp`` describes ``Adasum``.

    The gradient of the average and the sum is the same operation on the gradients of
    the results, with the same factors, machines and compression. The gradient of
    ``Min`` and ``Max`` goes to the ranks that hold the extreme, in equal parts; that of
    ``Product`` is multiplied by the other ranks' values. These three gather the inputs
    and gradients of all ranks, ``2 n`` times the memory of ``tensor``. ``Adasum`` has
    no gradient.

    Args:
        tensor: Tensor of any shape; shape and type must be the same on all ranks. It
            is not modified.
        average: ``True`` for the average (the default), ``False`` for the sum.
        is_hierarchical_local: Whether to reduce only among the ranks of this machine. A
            string here is the name, as in Horovod.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        compression: ``Compression.fp16`` sends 16-bit numbers.
        op: Reduction. It replaces ``average``.
        prescale_factor: Factor before the reduction, for floating-point types.
        postscale_factor: Factor after the reduction, for floating-point types.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New tensor with the shape and type of ``tensor``.

    Raises:
        TypeError: ``tensor`` is not a tensor, or its type is not supported; or
            ``is_hierarchical_local`` is neither a bool nor the only name, or
            ``compression`` is not a compressor.
        ValueError: An average, adasum or a factor is requested for a type that is not a
            floating-point type; both ``average`` and ``op`` are given; or ``tensor``
            requires grad and ``op`` is ``Adasum``.
        MismatchError: The ranks called the operation with different arguments.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    try:
        compressed, context = check_compressor(compression).compress(tensor)
        handle = _allreduce(
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
        )
    except Exception as error:
        args = (tensor, average, is_hierarchical_local, name)
        refuse_form(_allreduce, args, {"process_set": process_set}, error)
        raise
    return compression.decompress(handle.wait(), context)


def allreduce_parts_nonblocking(
    tensor: torch.Tensor,
    lengths: Sequence[int],
    *,
    op: ReduceOp,
    divisor: float = 1.0,
    name: str,
    process_set: Communicator,
    output: torch.Tensor | None = None,
    algorithm: str = "auto",
    gate: Gate | None = None,
) -> Handle[torch.Tensor]:
    """Start an allreduce of a tensor that consists of several tensors.

    Args:
        tensor: As in ``allreduce_nonblocking``.
        lengths: Number of elements of each of these tensors, which follow one another.
            ``Adasum`` computes weights for each of them and sums the elements behind
            the last one. The other reductions ignore the lengths.
        op: Reduction.
        divisor: Divides the values before the reduction and multiplies the result.
        name: As in ``allreduce``.
        process_set: As in ``allreduce``.
        output: Memory of the result, like ``tensor``. Default: ``tensor`` itself.
        algorithm: The engine's algorithm, the same on all ranks; see ``parameters``.
        gate: Opens when ``tensor`` has been written; as in ``start``.

    Returns:
        Handle of the result.
    """
    return start(
        process_set,
        "allreduce",
        tensor,
        NONBLOCKING_IN_PLACE if output is None else NONBLOCKING,
        name=name,
        timeout_s=None,
        output=output,
        parameters=parameters(
            op=choose("allreduce", None, op, tensor.dtype),
            prescale=1.0 / divisor,
            postscale=divisor,
            splits=tuple(lengths) if op is Adasum else (),
            algorithm=algorithm,
        ),
        gate=gate,
    )


def _start_same(forward: Forward, gradient: torch.Tensor) -> Handle[torch.Tensor]:
    """Return ``gx_j = factor * sum_i gy_i``."""
    return start(
        forward.comm,
        "allreduce",
        gradient,
        name=forward.name,
        timeout_s=forward.timeout_s,
        parameters=forward.parameters,
        adjoint=_SAME,
    )


_SAME = Adjoint(_start_same)
_ADJOINTS = {
    "sum": _SAME,
    "average": _SAME,
    "min": GRADIENT_BY_VALUES,
    "max": GRADIENT_BY_VALUES,
    "product": GRADIENT_BY_VALUES,
}


def _name_in_third_place(third: object, name: str | None) -> tuple[str, bool]:
    """Return the name that Horovod's scripts pass as third argument, and ``False``."""
    if not isinstance(third, str) or name is not None:
        raise TypeError(
            "allreduce: is_hierarchical_local must be True or False (or the name, if "
            f"name is not given), got {third!r} and name={name!r}"
        )
    return third, False
