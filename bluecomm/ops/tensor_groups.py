"""Operations that consist of one operation for each of several tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

import torch

from bluecomm.ops.refusal import Describe, Operation, is_told, refuse
from bluecomm.ops.tensor import require_tensors
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.handle import GroupHandle


def start_group(
    comm: Communicator,
    kind: str,
    tensors: Iterable[torch.Tensor],
    name: str | None,
    start: Callable[[torch.Tensor, str], Handle[torch.Tensor]],
) -> Handle[list[torch.Tensor]]:
    """Start an operation for each tensor and return a handle for all of them.

    If one of them is refused, so are those that follow it.

    Args:
        comm: Ranks that take part.
        kind: The engine's name of the operation.
        tensors: The tensors, in the same order on all ranks.
        name: Common part of the tensors' names. Groups without a name are matched by
            their order.
        start: Starts the operation on a tensor, with the tensor's name.
    """
    members = require_tensors(f"grouped_{kind}", tensors)
    names = _names(comm, kind, name, len(members))
    handles: list[Handle[torch.Tensor]] = []
    try:
        for tensor, own_name in zip(members, names, strict=True):
            handles.append(start(tensor, own_name))
    except Exception as error:
        later = names[len(handles) + 1 :] if is_told(error) else names[len(handles) :]
        refuse(comm, [(kind, one, None) for one in later], error)
        raise
    return GroupHandle(handles)


def refused_group(kind: str) -> Describe:
    """Describe refused calls of a group of operations of one kind."""

    def describe(
        comm: Communicator, arguments: Mapping[str, Any]
    ) -> Iterator[Operation]:
        tensors = arguments.get("tensors")
        count = len(tensors) if isinstance(tensors, Sized) else 1
        for name in _names(comm, kind, arguments["name"], count):
            yield kind, name, None

    return describe


def _names(comm: Communicator, kind: str, name: str | None, count: int) -> list[str]:
    label = comm.name_for(f"grouped_{kind}", name)
    return [f"{label}.{position}" for position in range(count)]
