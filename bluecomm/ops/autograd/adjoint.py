"""The adjoint of an operation: the operation that its backward pass runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bluecomm.ops.follow_up_name import follow_up_name
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.call import Call

if TYPE_CHECKING:
    from bluecomm._native import Parameters


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

    def __init__(
        self,
        comm: Communicator,
        call: Call[Any],
        shape: Sequence[int],
        given: Parameters | None,
    ) -> None:
        """Describe a call that has been started.

        Args:
            comm: Members that take part.
            call: The call.
            shape: Shape of its input.
            given: Its parameters, with the numbers of the members in ``comm``.
        """
        self.comm = comm
        self.kind = call.kind
        self.name = follow_up_name(comm, call, "backward")
        self.timeout_s = call.timeout_s
        self.parameters = given
        self.shape = shape
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
