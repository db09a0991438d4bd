"""The latest calls of this process, for a dump when one of them fails."""

from __future__ import annotations

import collections
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, NamedTuple

import torch

from bluecomm.runtime.call import Call

_FRAMES = 8
# Messages are counted for at most this many combinations of group, ranks and tag.
_LINES = 1024
_OURS = os.path.dirname(__file__)


class Message(NamedTuple):
    """The ranks and the tag of a send or a receive; the ranks are those of the world.

    Attributes:
        source: Rank of the sender; None for a receive from any rank.
        destination: Rank of the receiver.
        tag: Tag of the message.
    """

    source: int | None
    destination: int
    tag: int


class Entry:
    """One collective, send or receive.

    Args:
        record: The record that it belongs to.
        number: Number among all collectives of this process; for a message, that of
            the next collective.
        sequence: Number among those of its group; for a message, among those with the
            same group, ranks and tag.
        operation: torch's name of the call.
        group: Name of its group.
        calls: The engine's operations that it consists of. A refused call has none.
        message: The ranks and the tag of a send or a receive.
    """

    __slots__ = (
        "_record",
        "begin_ns",
        "dtypes",
        "end_ns",
        "error",
        "frames",
        "group",
        "inputs",
        "message",
        "number",
        "operation",
        "outputs",
        "sequence",
    )

    def __init__(
        self,
        record: FlightRecord,
        number: int,
        sequence: int,
        operation: str,
        group: str,
        calls: Sequence[Call[None]],
        message: Message | None = None,
    ) -> None:
        self._record = record
        self.number = number
        self.sequence = sequence
        self.operation = operation
        self.group = group
        self.message = message
        self.inputs = [_shape(call.keep[0]) for call in calls]
        self.outputs = [_shape(call.keep[1]) for call in calls]
        self.dtypes = [call.dtype for call in calls]
        self.frames = _callers()
        self.begin_ns = time.time_ns()
        self.end_ns: int | None = None
        self.error = ""

    def end(self, error: BaseException | None) -> None:
        """Note the end of the call, or its failure."""
        if self.end_ns is not None or self.error:
            return
        if error is None:
            self.end_ns = time.time_ns()
        else:
            self.error = f"{type(error).__name__}: {error}"
            self._record.note_failure()


class FlightRecord:
    """The latest calls of this process.

    Args:
        rank: This rank in the world.
        length: Number of collectives to keep, and of messages.
        on_failure: Called with the record when a call has failed.
    """

    def __init__(
        self, rank: int, length: int, on_failure: Callable[[FlightRecord], None]
    ) -> None:
        self.rank = rank
        self._pid = os.getpid()
        self._on_failure = on_failure
        # The groups of several threads may share a record.
        self._lock = threading.Lock()
        self._number = 0
        self.entries: collections.deque[Entry] = collections.deque(maxlen=length)
        # Apart, so that torch can align the collectives of all ranks by their numbers.
        self.messages: collections.deque[Entry] = collections.deque(maxlen=length)
        self._sent: collections.OrderedDict[tuple[str, Message], int] = (
            collections.OrderedDict()
        )
        # Description and ranks of each group, by its name.
        self.groups: dict[str, tuple[str, tuple[int, ...]]] = {}

    def begin(
        self,
        group: str,
        description: str,
        ranks: tuple[int, ...],
        sequence: int,
        operation: str,
        calls: Sequence[Call[None]],
    ) -> Entry:
        """Add a collective that begins.

        Args:
            group: torch's name of its process group.
            description: The user's description of the group.
            ranks: Ranks of the group in the world.
            sequence: Number of the collective in the group.
            operation: torch's name of the collective.
            calls: The engine's operations.
        """
        with self._lock:
            self.groups[group] = (description, ranks)
            entry = Entry(self, self._number, sequence, operation, group, calls)
            self._number += 1
            self.entries.append(entry)
        return entry

    def begin_message(
        self,
        group: str,
        description: str,
        ranks: tuple[int, ...],
        operation: str,
        calls: Sequence[Call[None]],
        message: Message,
    ) -> Entry:
        """Add a send or a receive that begins; see ``begin``."""
        line = group, message
        with self._lock:
            self.groups[group] = (description, ranks)
            sequence = self._sent.pop(line, 0) + 1
            self._sent[line] = sequence
            if len(self._sent) > _LINES:
                self._sent.popitem(last=False)
            number = self._number
            entry = Entry(self, number, sequence, operation, group, calls, message)
            self.messages.append(entry)
        return entry

    def note_failure(self) -> None:
        """Report that a call has failed, unless this process is a fork."""
        if os.getpid() == self._pid:
            self._on_failure(self)


def _shape(tensors: Any) -> tuple[int, ...]:
    """Return the shape of a tensor, or of the stack of several tensors."""
    if isinstance(tensors, torch.Tensor):
        return tuple(tensors.shape)
    if not tensors:
        return ()
    return (sum(tensor.numel() for tensor in tensors),)


def _callers() -> list[tuple[CodeType, int]]:
    """Return code and line of the innermost frames outside of this package."""
    found: list[tuple[CodeType, int]] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < _FRAMES:
        if not frame.f_code.co_filename.startswith(_OURS):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return found
