"""Batch: several sends and receives at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.recv import recv_nonblocking
from bluecomm.ops.send import send_nonblocking
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.handle import GroupHandle

__all__ = ["Recv", "Send", "batch", "batch_nonblocking"]


@dataclasses.dataclass(frozen=True)
class Send:
    """A send in a ``batch``; the arguments are those of ``send``."""

    tensor: torch.Tensor
    dst: int
    tag: int = 0


@dataclasses.dataclass(frozen=True)
class Recv:
    """A receive in a ``batch``; the arguments are those of ``recv``."""

    tensor: torch.Tensor
    src: int | None = None
    tag: int = 0


def _batch(
    _: Form,
    /,
    parts: Iterable[Send | Recv],
    process_set: Communicator | None = None,
    *,
    timeout_s: float | None = None,
) -> Handle[list[int | None]]:
    """Start all sends and receives, then wait for all of them.

    None waits for another one, so the ranks may list theirs in any order::

        bf.batch([bf.Send(x, right), bf.Recv(y, left)])

    All are waited for even if one fails; then the first error is raised.

    Args:
        parts: Sends and receives. Parts between the same ranks with the same tag match
            in the order of the list.
        process_set: As in ``send``.
        timeout_s: As in ``send``, for each of them.

    Returns:
        For each part ``None`` for a send, the rank of the sender for a receive.

    Raises:
        TypeError: A part is neither ``Send`` nor ``Recv``. The other errors of ``send``
            and ``recv`` occur, too.
    """
    listed = list(parts)
    for part in listed:
        if not isinstance(part, Send | Recv):
            raise TypeError(
                f"batch: expected bluecomm.Send or bluecomm.Recv, got {part!r:.80}"
            )
    return GroupHandle([_start(part, process_set, timeout_s) for part in listed])


def _start(
    part: Send | Recv, process_set: Communicator | None, timeout_s: float | None
) -> Handle[Any]:
    if isinstance(part, Send):
        return send_nonblocking(
            part.tensor, part.dst, part.tag, process_set, timeout_s=timeout_s
        )
    return recv_nonblocking(
        part.tensor, part.src, part.tag, process_set, timeout_s=timeout_s
    )


batch = blocking(_batch)
batch_nonblocking = nonblocking(_batch)
