"""Starts the operations on one tensor: makes a call from a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import increment_version

from bluecomm.ops.autograd.adjoint import Adjoint
from bluecomm.ops.autograd.in_place import refuse_leaf, written_to
from bluecomm.ops.autograd.nodes import is_tracked, start_tracked
from bluecomm.ops.forms import NONBLOCKING, Form
from bluecomm.ops.outputs import Out, stacked_spans, written
from bluecomm.ops.refusal import refuse_start
from bluecomm.ops.tensor import as_input, new_output, refuse_scalar, span
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.call import NO_MEMORY, Call

if TYPE_CHECKING:
    from bluecomm._native import Parameters

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
) -> Handle[torch.Tensor]:
    """Start an operation whose result has the shape of its input, or ``rows`` of it.

    In place, the result is written to ``tensor`` itself (a tensor that is not
    contiguous is copied on the way in and out). Otherwise it is written to ``output``,
    which is contiguous, like ``tensor`` and apart from it, or to new memory if there is
    no ``output``.

    If ``tensor`` requires grad, so does the result, and ``adjoint`` makes the gradient.

    Raises:
        RuntimeError: The operation is in place, on a leaf that requires grad.
        ValueError: ``tensor`` requires grad, and there is no ``adjoint``.
    """
    call: Call[torch.Tensor] | None = None
    try:
        source, dtype = as_input(tensor, kind)
        # as_input() detaches tensors that require grad.
        tracked = source is not tensor and is_tracked(tensor)
        in_place = form.in_place and not tracked
        if form.in_place and tracked:
            refuse_leaf(f"{kind}_", tensor)
        here = span(source)
        if in_place:
            output, there = source, here
            if comm.keeps_input(kind) and here[1] <= _KEPT_NBYTES:
                source = source.clone()
                here = span(source)
        else:
            if output is None:
                output = new_output(source if rows is None else source[:rows])
            there = span(output)
        call = Call(
            kind,
            dtype,
            source.shape,
            here,
            there,
            (source, output, tensor),
            _written_back(tensor, output) if in_place else lambda _: output,
        )
        call.name = name
        call.timeout_s = timeout_s
        call.parameters = parameters
        call.blocking = form.blocking
        if not tracked:
            return comm.start(call)
        handle = start_tracked(comm, call, tensor, adjoint)
        return written_to(tensor, handle) if form.in_place else handle
    except Exception as error:
        refuse_start(comm, kind, name, parameters, call, error)
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
) -> Handle[tuple[torch.Tensor, list[int]]]:
    """Start an operation that stacks tensors of unknown lengths along dimension 0.

    The result is the stacked tensor and the rows that came from each source. The
    stacked tensor requires grad if ``tensor`` does. If the caller gives memory for the
    rows, the result is ``out`` and no numbers of rows. A rank without a result gets a
    tensor without rows.

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

    call: Call[tuple[torch.Tensor, list[int]]] | None = None
    try:
        refuse_scalar(kind, tensor)
        source, dtype = as_input(tensor, kind)
        given = None if out is None else stacked_spans(kind, tensor, out, comm.size)
        call = Call(
            kind,
            dtype,
            source.shape,
            span(source),
            given or NO_MEMORY,
            (source, out),
            finish if out is None else finish_given,
        )
        call.name = name
        call.timeout_s = timeout_s
        call.parameters = parameters
        call.blocking = form.blocking
        if source is not tensor and is_tracked(tensor):
            return start_tracked(comm, call, tensor, adjoint)
        return comm.start(call)
    except Exception as error:
        refuse_start(comm, kind, name, parameters, call, error)
        raise


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
