"""Marks the methods of a group that start a collective."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from bluecomm.ops.refusal import is_told

if TYPE_CHECKING:
    from bluecomm.torch_backend.calls import GroupCalls

# torch's names of the methods that have other names.
_OPERATIONS = {
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "alltoall": "all_to_all",
}

_Method = TypeVar("_Method", bound=Callable[..., Any])


def collective(kind: str) -> Callable[[_Method], _Method]:
    """Let the other ranks know of a call that a method of a group refuses.

    The refused call takes its number, so that later calls meet the right partners, and
    the other ranks' calls of that number fail with the reason.

    If another backend of the group serves the tensors, the method is not called, and
    the call goes to that backend.

    Args:
        kind: The engine's name of the operation that the method starts.
    """

    def decorate(method: _Method) -> _Method:
        operation = _OPERATIONS.get(method.__name__, method.__name__)

        @functools.wraps(method)
        def call(self: GroupCalls, *args: Any, **kwargs: Any) -> Any:
            if (other := self._other(method.__name__, args)) is not None:
                return other(*args, **kwargs)
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                if not is_told(error):
                    self._refuse(kind, error, operation)
                raise

        return call  # type: ignore[return-value]

    return decorate
