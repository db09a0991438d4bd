"""Starts the operations on one tensor: makes a call from a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import increment_version

from bluecomm.device.staging import Staging
from bluecomm.device.staging_table import staging_of
from bluecomm.device.values import copied_fast
from bluecomm.ops.autograd.adjoint import Adjoint
from bluecomm.ops.autograd.in_place import refuse_leaf, written_to
from bluecomm.ops.autograd.nodes import is_tracked, start_tracked
from bluecomm.ops.device_operation import DeviceOperation
from bluecomm.ops.forms import NONBLOCKING, Form
from bluecomm.ops.nccl_call import concerned_by, make_nccl_call
from bluecomm.ops.nccl_choice import goes_through_nccl, nccl_work
from bluecomm.ops.nccl_gather import NcclGather, gathers_through_nccl
from bluecomm.ops.nccl_several import steps_of
from bluecomm.ops.nccl_steps import NcclSteps
from bluecomm.ops.outputs import Out, stacked_outputs, written
from bluecomm.ops.overlaps import apart_from
from bluecomm.ops.refusal import refuse_start
from bluecomm.ops.tensor import as_input, location, new_output, refuse_scalar, span
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.call import NO_MEMORY, Call

if TYPE_CHECKING:
    from bluecomm._native import Gate, Parameters

# A stacked tensor, and the number of rows that came from each source.
Rows = tuple[Any, list[int]]

# Calls in place up to this size are made from a copy if they may have to be repeated.
_KEPT_NBYTES = 1 << 20


def start(
    comm: Communicator,
    kind: str,
    tensor: torch.Tensor,
    form: Form = NONBLOCKING,
    *,
    name: str | None,
    timeout_s: float | None,
    output: torch.Tensor | None = None,
    rows: int | None = None,
    parameters: Parameters | None = None,
    adjoint: Adjoint | None = None,
    gate: Gate | None = None,
) -> Handle[torch.Tensor]:
    """Start an operation whose result has the shape of its input, or ``rows`` of it.

    In place, the result is written to ``tensor`` itself (a tensor that is not
    contiguous is copied on the way in and out). Otherwise it is written to ``output``,
    which is contiguous and like ``tensor``, or to new memory if there is no ``output``.
    A tensor on a device goes through NCCL, or to the host and back; ``output`` may then
    overlap it.

    If ``tensor`` requires grad, so does the result, and ``adjoint`` makes the gradient.

    A ``gate`` opens when the values of ``tensor``, which is on the host, have been
    written. In a job that survives losses such a call needs an ``output``.

    Raises:
        RuntimeError: The operation is in place, on a leaf that requires grad.
        ValueError: ``tensor`` requires grad, and there is no ``adjoint``.
    """
    call: Call[torch.Tensor] | None = None
    begin: Callable[[Call[Any]], Handle[torch.Tensor]] = comm.start
    try:
        source, dtype = as_input(tensor, kind, staged=True)
        # as_input() detaches tensors that require grad.
        tracked = source is not tensor and is_tracked(tensor)
        in_place = form.in_place and not tracked
        if form.in_place and tracked:
            refuse_leaf(f"{kind}_", tensor)
        keeps_input = in_place and comm.keeps_input(kind)
        assert gate is None or not keeps_input
        staging = staging_of(source)
        if staging is not None:
            comm.world.check_usable()  # before a forked child asks for memory
            target = tensor if in_place else output
            if goes_through_nccl(comm, staging, kind, dtype, source.shape, parameters):
                assert parameters is not None
                is_kept = in_place and comm.is_repeated
                result, end = _on_device(
                    staging, source, target, rows, may_overwrite=not is_kept
                )
                if comm.is_repeated or location(source) != location(result):
                    source = apart_from(result, source)
                operation = DeviceOperation(
                    comm, staging, kind, dtype, source, result, parameters
                )
                if (several := steps_of(operation)) is not None:
                    steps = NcclSteps(operation, several, end, timeout_s)
                    call, begin = steps.first, steps.begin
                else:
                    call = make_nccl_call(
                        *(comm, staging, kind, name, dtype, source.shape),
                        *(nccl_work(operation), end, timeout_s),
                    )
            else:
                call = _staged_call(staging, kind, dtype, source, target, rows)
                if comm.is_repeated:
                    # Until all members have a result, a repetition may replace it.
                    call.parts = None
        elif in_place:
            call = _call_in_place(kind, dtype, source, tensor, keeps_input=keeps_input)
        else:
            if output is None:
                output = new_output(source if rows is None else source[:rows])
            call = _call(kind, dtype, source, output, tensor, lambda _: output)
        if gate is not None:
            call.gate = gate
        call.name = name
        call.timeout_s = timeout_s
        call.parameters = parameters
        call.blocking = form.blocking and call.parts is None
        if not tracked:
            return begin(call)
        handle = start_tracked(comm, call, tensor, adjoint, begin)
        return written_to(tensor, handle) if form.in_place else handle
    except Exception as error:
        concerned = concerned_by(comm, kind, tensor, parameters)
        refuse_start(comm, kind, name, concerned, call, error)
        raise


def start_gather(
    comm: Communicator,
    kind: str,
    tensor: torch.Tensor,
    form: Form = NONBLOCKING,
    *,
    name: str | None,
    timeout_s: float | None,
    parameters: Parameters | None = None,
    adjoint: Adjoint | None = None,
    out: Out | None = None,
    has_result: bool = True,
    gate: Gate | None = None,
    follows: bool = False,
) -> Handle[tuple[torch.Tensor, list[int]]]:
    """Start an operation that stacks tensors of unknown lengths along dimension 0.

    The result is the stacked tensor and the rows that came from each source. The
    stacked tensor requires grad if ``tensor`` does. If the caller gives memory for the
    rows, the result is ``out`` and no numbers of rows. A rank without a result gets a
    tensor without rows. A ``gate`` is as in ``start``, and ``follows`` as in ``Call``.

    Raises:
        ValueError: ``tensor`` has no dimension 0; or it requires grad, and there is no
            ``adjoint``; or ``out`` does not suit it.
    """

    def finish(number: int) -> tuple[torch.Tensor, list[int]]:
        if not has_result:
            return source.new_empty((0, *source.shape[1:])), []
        block, rows = comm.world.output(number)
        shape = (sum(rows), *source.shape[1:])
        if 0 in shape:
            return torch.empty(shape, dtype=source.dtype), rows
        count = torch.Size(shape).numel()
        flat = torch.frombuffer(block, dtype=source.dtype, count=count)
        return flat.view(shape), rows

    def finish_given(_: int) -> tuple[Any, list[int]]:
        return written(out), []

    def finish_on_device(stacked: torch.Tensor, rows: list[int]) -> Rows:
        return (stacked, rows) if out is None else (written(out), [])

    call: Call[Any] | None = None
    begin: Callable[[Call[Any]], Handle[Rows]] = comm.start
    try:
        refuse_scalar(kind, tensor)
        source, dtype = as_input(tensor, kind, staged=True)
        given = [] if out is None else stacked_outputs(kind, tensor, out, comm.size)
        staging = staging_of(source)
        if staging is not None:
            comm.world.check_usable()  # before a forked child asks for memory
        if staging is not None and gathers_through_nccl(comm, staging, kind):
            gather = NcclGather(
                comm,
                staging,
                kind,
                dtype,
                source,
                parameters,
                given,
                finish_on_device,
                timeout_s,
            )
            call, begin = gather.first, gather.begin
        else:
            memory, results = source, given
            end: Callable[[int], Rows] = finish if out is None else finish_given
            if staging is not None:
                memory, gate = staging.to_host(source)
                results = [staging.empty_on_host(one.shape, one.dtype) for one in given]
                end = _moved(staging, end, given, results)
            call = Call(
                kind,
                dtype,
                source.shape,
                span(memory),
                [span(one) for one in results] or NO_MEMORY,
                (source, memory, results),
                end,
            )
            call.gate = gate
            call.parameters = parameters
        call.name = name
        call.timeout_s = timeout_s
        call.blocking = form.blocking
        call.follows = follows
        if source is not tensor and is_tracked(tensor):
            return start_tracked(comm, call, tensor, adjoint, begin)
        return begin(call)
    except Exception as error:
        concerned = concerned_by(comm, kind, tensor, parameters)
        refuse_start(comm, kind, name, concerned, call, error)
        raise


def _call(
    kind: str,
    dtype: str,
    source: torch.Tensor,
    output: torch.Tensor,
    keep: torch.Tensor,
    finish: Callable[[int], torch.Tensor],
) -> Call[torch.Tensor]:
    """Return a call from one tensor on the host to another, or to the same."""
    here = span(source)
    there = here if output is source else span(output)
    return Call(kind, dtype, source.shape, here, there, (source, output, keep), finish)


def _call_in_place(
    kind: str,
    dtype: str,
    source: torch.Tensor,
    tensor: torch.Tensor,
    *,
    keeps_input: bool,
) -> Call[torch.Tensor]:
    output = source
    if keeps_input and source.nbytes <= _KEPT_NBYTES:
        source = source.clone()
    return _call(kind, dtype, source, output, tensor, _written_back(tensor, output))


def _staged_call(
    staging: Staging,
    kind: str,
    dtype: str,
    source: torch.Tensor,
    target: torch.Tensor | None,
    rows: int | None,
) -> Call[torch.Tensor]:
    """Return a call on host memory for a tensor that is on a device.

    Args:
        staging: Copies to the host and back.
        kind: As in ``start``.
        dtype: The engine's name of the element type.
        source: Contiguous tensor on the device.
        target: Where the result goes; ``None`` for a new tensor.
        rows: As in ``start``.
    """
    shape = source.shape if rows is None else (rows, *source.shape[1:])
    if target is not None:
        shape = target.shape
    copy = staging.to_host(source)
    result = staging.empty_on_host(shape, source.dtype)
    back = staging.copy_back(result, target)
    call = _call(kind, dtype, copy.values, result, source, lambda _: back.finish())
    call.parts = back if back.in_parts else None
    call.gate = copy.gate
    return call


def _on_device(
    staging: Staging,
    source: torch.Tensor,
    target: torch.Tensor | None,
    rows: int | None,
    *,
    may_overwrite: bool,
) -> tuple[torch.Tensor, Callable[[int], torch.Tensor]]:
    """Return contiguous memory on the device, and what makes the result from it.

    Args:
        staging: Staging of the device.
        source: Contiguous input.
        target: As in ``_staged_call``.
        rows: As in ``start``.
        may_overwrite: Whether the memory may be that of ``target``. It may not if
            ``target`` is the input of a call that may be repeated.
    """
    if target is None:
        shape = source.shape if rows is None else (rows, *source.shape[1:])
        target = staging.empty(shape, source.dtype)
    is_plain = not target.is_conj() and not target.is_neg()
    if may_overwrite and target.is_contiguous() and is_plain:
        return target, _written_back(target, target)
    result = staging.empty(target.shape, target.dtype)
    return result, _written_back(target, result)


def _moved(
    staging: Staging,
    finish: Callable[[int], Rows],
    given: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
) -> Callable[[int], Rows]:
    """Return the end of an operation that has stacked rows on the host.

    Args:
        staging: Copies to the device.
        finish: Returns the result on the host, if the caller gave no memory for it.
        given: Tensors on the device that the caller gave.
        results: Their values on the host.
    """

    def finish_moved(number: int) -> Rows:
        stacked, rows = finish(number)
        for tensor, values in zip(given, results, strict=True):
            staging.write(tensor, values)
        if not given and staging_of(stacked) is None:
            stacked = copied_fast(staging, stacked)
        return stacked, rows

    return finish_moved


def _written_back(
    tensor: torch.Tensor, output: torch.Tensor
) -> Callable[[int], torch.Tensor]:
    """Return the end of an in-place operation on ``tensor``."""

    def finish(_: int) -> torch.Tensor:
        if output is tensor or output.data_ptr() == tensor.data_ptr():
            # Autograd did not see the engine write.
            increment_version(tensor)
        else:
            with torch.no_grad():
                tensor.copy_(output)
        return tensor

    return finish
