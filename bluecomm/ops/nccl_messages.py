"""Messages between members through NCCL, whose sizes both ends know."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from bluecomm._native import NcclCall, NcclGroup, NcclQueue

# A member, and the memory that is sent to it or received from it.
Message = tuple[int, torch.Tensor]


class Messages:
    """Messages to and from members of a group, all at once.

    The ticket compares their sizes.

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

    def make_draft(
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


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.data_ptr() == second.data_ptr() and first.nbytes == second.nbytes


def _spans(messages: dict[int, torch.Tensor]) -> list[tuple[int, int, int]]:
    """Return member, address and bytes of the messages that have some."""
    return [
        (member, tensor.data_ptr(), tensor.nbytes)
        for member, tensor in messages.items()
        if tensor.nbytes
    ]
