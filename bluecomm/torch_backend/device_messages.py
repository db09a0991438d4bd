"""The calls of a group that are messages through NCCL.

All ranks know the sizes of the messages that they send and receive. So a call is one
group of NCCL's sends and receives, and its ticket compares the sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from bluecomm.torch_backend.staged import Destination

if TYPE_CHECKING:
    from bluecomm._native import NcclCall, NcclGroup, NcclQueue

# A member, and the memory that is sent to it or received from it.
Message = tuple[int, torch.Tensor]


class Messages:
    """Messages to and from members of a group, all at once.

    Args:
        member: Number of this member.
        sends: Contiguous tensors for members, at most one for each.
        receives: Contiguous memory for tensors of members, at most one for each.
    """

    def __init__(
        self, member: int, sends: Iterable[Message], receives: Iterable[Message]
    ) -> None:
        to, by = dict(sends), dict(receives)
        own, memory = to.get(member), by.get(member)
        if own is not None and memory is not None and _same(own, memory):
            del to[member], by[member]
        self._sends, self._receives = to, by

    def make_ticket(
        self, queue: NcclQueue, group: NcclGroup, stream: int, limit_s: float
    ) -> NcclCall:
        """See ``NcclWork``."""
        return queue.make_exchange(
            group=group,
            sends=_spans(self._sends),
            receives=_spans(self._receives),
            compares_sizes=True,
            stream=stream,
            limit_s=limit_s,
        )

    def complete(self, gone: Collection[int]) -> None:
        """Do nothing, because all is where the caller wants it."""


def messages_of(
    kind: str,
    member: int,
    size: int,
    source: torch.Tensor | None,
    destination: Destination,
    parts: Sequence[int] | None,
    parameters: Any,
) -> Messages:
    """Return the messages of a collective on one rank.

    Args:
        kind: ``allgather``, ``alltoall``, ``gather`` or ``scatter``.
        member: Number of this member.
        size: Number of members.
        source: Contiguous input; ``None`` where a scatter has none.
        destination: Contiguous memory of the result, a tensor for each member or one
            that has ``parts[n]`` elements of member ``n``. A scatter's root has none.
        parts: Elements of each member in the single tensor of an alltoall.
        parameters: Parameters of the operation.
    """
    if isinstance(destination, torch.Tensor):
        assert parts is not None
        memories: Sequence[torch.Tensor] = torch.split(
            destination.view(-1), list(parts)
        )
    else:
        memories = destination or ()
    if kind == "scatter":
        if source is None:
            return Messages(member, (), [(parameters.root, memories[0])])
        pieces = enumerate(torch.split(source, list(parameters.splits)))
        return Messages(member, [one for one in pieces if one[0] != member], ())
    assert source is not None
    flat = source.view(-1)
    if kind == "alltoall":
        sends: Iterable[Message] = enumerate(torch.split(flat, list(parameters.splits)))
    elif kind == "gather":
        sends = [(parameters.root, flat)]
    else:
        sends = [(one, flat) for one in range(size)]
    return Messages(member, sends, enumerate(memories))


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.data_ptr() == second.data_ptr() and first.nbytes == second.nbytes


def _spans(messages: dict[int, torch.Tensor]) -> list[tuple[int, int, int]]:
    """Return member, address and bytes of the messages that have some."""
    return [
        (member, tensor.data_ptr(), tensor.nbytes)
        for member, tensor in messages.items()
        if tensor.nbytes
    ]
