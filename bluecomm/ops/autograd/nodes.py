"""The nodes of an operation in autograd's graph.

A differentiable operation has two nodes: one for its start, one for the wait. Backward
passes run them in reverse: the node of the wait starts the adjoint, and the node of the
start waits for it. Autograd runs the nodes of one backward pass in the reverse order of
their creation. So the backward pass is the forward pass in reverse: if the ranks'
forward passes did not block each other, neither do their backward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from bfrun.wording import format_ranks
from bluecomm.errors import CommunicationTimeout
from bluecomm.ops.autograd.adjoint import Adjoint, Forward
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.call import Call
from bluecomm.runtime.completions import Callback

Result = TypeVar("Result")


def is_tracked(tensor: torch.Tensor) -> bool:
    """Return whether autograd records operations on a tensor."""
    return tensor.requires_grad and torch.is_grad_enabled()


def start_tracked(
    comm: Communicator,
    call: Call[Result],
    tensor: torch.Tensor,
    adjoint: Adjoint | None,
    begin: Callable[[Call[Any]], Handle[Any]] | None = None,
) -> Handle[Result]:
    """Start a call whose result carries the gradient of ``tensor``.

    The result is a tensor, or a stacked tensor and its rows from each source.

    Args:
        comm: Members that take part.
        call: The call.
        tensor: Its input.
        adjoint: How it is differentiated.
        begin: Starts the call. Default: ``comm.start``.

    Raises:
        ValueError: The operation has no adjoint.
    """
    if adjoint is None:
        raise ValueError(
            f"{call.kind}: the tensor requires grad, but this operation has no "
            "gradient; pass tensor.detach(), or call it under torch.no_grad()"
        )
    passage = _Passage(adjoint)
    inputs: list[torch.Tensor] = [_Start.apply(tensor, passage)]  # type: ignore[no-untyped-call]
    if adjoint.needs_input:
        inputs.append(tensor)
    given = call.parameters  # after a loss, those of the call have other numbers
    handle = (begin or comm.start)(call)
    passage.forward = Forward(comm, call, tensor.shape, given)
    return _TrackedHandle(handle, passage, inputs)


class _Passage:
    """The state that the two nodes of a call share."""

    __slots__ = ("_adjoint", "_running", "forward", "output")

    def __init__(self, adjoint: Adjoint) -> None:
        self._adjoint = adjoint
        self._running: Handle[torch.Tensor] | None = None
        self.forward: Forward | None = None
        self.output: torch.Tensor | None = None

    def take_output(self) -> torch.Tensor:
        output, self.output = self.output, None
        assert output is not None
        return output

    def start_adjoint(self, gradient: torch.Tensor, *saved: torch.Tensor) -> None:
        self._running = self._adjoint.start(self.forward, gradient, *saved)

    def finish_adjoint(self) -> torch.Tensor:
        running, self._running = self._running, None
        assert running is not None
        assert self.forward is not None
        try:
            return running.wait()
        except CommunicationTimeout as error:
            late = format_ranks(error.peers, noun=True) or "another rank"
            error.advise(
                f"Perhaps {late} did not run the backward pass: all ranks that took "
                f"part in {self.forward.kind} run it, and a rank whose loss does not "
                "use the result adds 0 * result.sum() to the loss."
            )
            raise


class _TrackedHandle(Handle[Result]):
    """The handle of a differentiable call."""

    __slots__ = ("_inner", "_inputs", "_passage")

    def __init__(
        self,
        inner: Handle[Result],
        passage: _Passage,
        inputs: Sequence[torch.Tensor],
    ) -> None:
        self._inner = inner
        self._passage = passage
        self._inputs = inputs

    def done(self) -> bool:
        return self._inner.done()

    def wait(self, timeout_s: float | None = None) -> Any:
        result = self._inner.wait(timeout_s)
        if not isinstance(result, tuple):
            return self._attached(result)
        stacked, rows = result
        forward = self._passage.forward
        assert forward is not None
        forward.rows = rows
        return self._attached(stacked), rows

    def on_finish(self, callback: Callback) -> None:
        self._inner.on_finish(callback)

    def _attached(self, output: Any) -> torch.Tensor:
        """Return the output as part of the graph, even under ``no_grad``."""
        inputs, self._inputs = self._inputs, ()
        self._passage.output = output
        with torch.enable_grad():
            attached: torch.Tensor = _Wait.apply(self._passage, *inputs)  # type: ignore[no-untyped-call]
        return attached

    def __repr__(self) -> str:
        return repr(self._inner)


class _Start(torch.autograd.Function):
    """The node of the start: from the input to a token without elements."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, passage: _Passage) -> torch.Tensor:
        ctx.passage = passage
        return tensor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        return ctx.passage.finish_adjoint(), None


class _Wait(torch.autograd.Function):
    """The node of the wait: from the token (and the saved input) to the result."""

    @staticmethod
    def forward(ctx: Any, passage: _Passage, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.passage = passage
        ctx.unused = (None,) * (len(inputs) - 1)
        ctx.save_for_backward(*inputs[1:])
        return passage.take_output()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        ctx.passage.start_adjoint(gradient, *ctx.saved_tensors)
        return None, gradient.new_empty(0), *ctx.unused
