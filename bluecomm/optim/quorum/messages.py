"""Messages between a rank and the server: sends and receives in a fixed order."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import torch

from bluecomm.ops.recv import post_receive
from bluecomm.ops.send import post_send
from bluecomm.ops.tensor import shared_like
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.handle import GroupHandle, abandon_all

# An answer begins with two bytes, whether the server works and whether all ranks have
# ended, and the text of the server's error, as far as it fits.
_TEXT_AT, _ANSWER_NBYTES = 2, 512


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to a rank's progress.

    Attributes:
        values: The outer parameters, one flat tensor for each bucket. They do not count
            if there is an error.
        all_end: Whether all ranks have ended.
        error: The text of the error with which the server has failed, or "".
    """

    values: Sequence[torch.Tensor]
    all_end: bool = False
    error: str = ""


class TaggedRoute:
    """Sends to one rank and receives from it, with a tag of the optimizer's own.

    Args:
        comm: Ranks of the optimizer.
        name: Name of the optimizer.
        rank: The other rank, in the world.
    """

    def __init__(self, comm: Communicator, name: str, rank: int) -> None:
        self._comm = comm
        self._rank = rank
        digest = hashlib.blake2b(name.encode(), digest_size=7).digest()
        # Programs are unlikely to use such tags.
        self._tag = (1 << 62) + int.from_bytes(digest, "big")

    def send(self, tensors: Sequence[torch.Tensor]) -> Handle[list[None]]:
        """Start to send tensors, which must stay as they are meanwhile."""
        rank, tag, comm = self._rank, self._tag, self._comm
        return GroupHandle([post_send(one, rank, tag, comm) for one in tensors])

    def receive(self, tensors: Sequence[torch.Tensor]) -> list[Handle[int]]:
        """Start to receive tensors."""
        rank, tag, comm = self._rank, self._tag, self._comm
        return [post_receive(one, rank, tag, comm) for one in tensors]


class AwaitedAnswer:
    """An answer that this rank receives.

    Args:
        route: The way from the server.
        like: Tensors like those of the answer.
    """

    def __init__(self, route: TaggedRoute, like: Sequence[torch.Tensor]) -> None:
        self._values = [shared_like(one) for one in like]
        self._head = torch.empty(_ANSWER_NBYTES, dtype=torch.uint8)
        self._first, *self._parts = route.receive([self._head, *self._values])
        self._rest = GroupHandle(self._parts)
        self._has_head = False
        self._error: Exception | None = None

    def done(self) -> bool:
        """Return whether ``wait`` would not have to wait."""
        if not self._has_head and not self._first.done():
            return False
        self._take_head()
        return not self._has_values or self._rest.done()

    def wait(self) -> Answer:
        """Wait for the answer.

        Raises:
            BluecommError: It does not come.
        """
        self._take_head()
        if not self._has_values:
            abandon_all(self._parts, "the server has failed, and sends no values")
        if self._error is not None:
            raise self._error
        if self._has_values:
            self._rest.wait()
        return Answer(self._values, bool(self._head[1]), _text_of(self._head))

    @property
    def _has_values(self) -> bool:
        """Whether values follow the head, which has been taken."""
        return self._error is None and not self._head[0]

    def _take_head(self) -> None:
        """Wait for the head; keep the error if it does not come."""
        if self._has_head:
            return
        try:
            self._first.wait()
        except Exception as error:
            self._error = error
        self._has_head = True


def tensors_of(answer: Answer) -> list[torch.Tensor]:
    """Return the tensors that send an answer."""
    head = torch.zeros(_ANSWER_NBYTES, dtype=torch.uint8)
    text = answer.error.encode()[: _ANSWER_NBYTES - _TEXT_AT]
    head[0], head[1] = bool(answer.error), answer.all_end
    if text:
        head[_TEXT_AT : _TEXT_AT + len(text)] = torch.frombuffer(
            bytearray(text), dtype=torch.uint8
        )
    return [head, *answer.values]


def _text_of(head: torch.Tensor) -> str:
    return bytes(head[_TEXT_AT:].tolist()).rstrip(b"\0").decode(errors="ignore")
