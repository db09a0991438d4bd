"""The adjoint of an operation: the operation that its backward pass runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.call import Call
from bluecomm.runtime.communicator import UNNAMED

if TYPE_CHECKING:
    from bluecomm._native import Parameters

# The backward passes of calls with one name take turns with this many names, so that
# the tables of names stay small.
_TURNS = 64


class Forward:
    """The facts about a differentiable call that its adjoint needs.

    Attributes:
        comm: Members that take part.
        kind: The engine's name of the operation.
        name: Name of the adjoint, by which the ranks' calls of it are matched.
        timeout_s: Deadline that the caller gave. It is the adjoint's, too.
        parameters: Parameters of the call.
        shape: Shape of the input.
        rows: Rows that came from each source, if the result is stacked.
    """

    __slots__ = ("comm", "kind", "name", "parameters", "rows", "shape", "timeout_s")

    def __init__(self, comm: Communicator, call: Call[Any]) -> None:
        """Describe a call that has been started."""
        self.comm = comm
        self.kind = call.kind
        self.name = _backward_name(comm, call)
        self.timeout_s = call.timeout_s
        self.parameters: Parameters | None = call.parameters
        self.shape = call.shape
        self.rows: Sequence[int] = ()


class Adjoint(NamedTuple):
    """How an operation is differentiated.

    Attributes:
        start: Starts the operation that makes the gradient of the input from the
            gradient of the result, and from the input if ``needs_input``. It calls
            differentiable operations, so that backward passes can be nested.
        needs_input: Whether autograd keeps the input.
    """

    start: Callable[..., Handle[torch.Tensor]]
    needs_input: bool = False


def _backward_name(comm: Communicator, call: Call[Any]) -> str:
    """Return the name of a call's adjoint, which is the same on all ranks.

    Ranks may run the backward passes of one name's calls in different orders, so the
    engine's count of these calls is part of the name.
    """
    assert call.name is not None
    if UNNAMED in call.name:
        return f"{call.name}.backward"
    turn = (comm.world.engine.calls_like(call) - 1) % _TURNS
    return f"{call.name}.backward.{turn}"
