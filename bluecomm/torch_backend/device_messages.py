"""The collectives of a group that are messages, through NCCL.

All ranks know the sizes of the messages that they send and receive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from bluecomm.ops.nccl_messages import Message, Messages
from bluecomm.torch_backend.staged import Destination


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
