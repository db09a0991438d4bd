"""The handle of an operation whose result is taken in parts, while it still runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from bluecomm.runtime.handle import RequestHandle, RequestOwner, Result

if TYPE_CHECKING:
    from bluecomm._native import Completion


class ResultParts(Protocol):
    """Takes the first parts of a result; the end of the operation takes the rest."""

    @property
    def wanted(self) -> int:
        """How many of the first bytes must be final for the next part."""

    @property
    def copied(self) -> int:
        """How many of the first bytes have been taken."""

    def take(self, nbytes: int) -> None:
        """Take the parts in the first ``nbytes``, which are final."""

    def restart(self) -> None:
        """Forget what has been taken, because it has changed."""


class PartsOwner(RequestOwner, Protocol):
    """The methods of a world that these handles call."""

    def wait_part(
        self, number: int, nbytes: int, timeout_s: float | None
    ) -> tuple[Completion | None, int]:
        """Wait for a request, or for the first ``nbytes`` of its result."""


class PartsHandle(RequestHandle[Result]):
    """The handle of a request whose result leaves the host in parts.

    Args:
        world: As for ``RequestHandle``.
        number: As for ``RequestHandle``.
        kind: As for ``RequestHandle``.
        name: As for ``RequestHandle``.
        finish: As for ``RequestHandle``.
        parts: Takes the parts that are final before the request has ended.
    """

    __slots__ = ("_parts", "_parts_owner")

    def __init__(
        self,
        world: PartsOwner,
        number: int,
        kind: str,
        name: str,
        finish: Callable[[int], Result],
        parts: ResultParts,
    ) -> None:
        super().__init__(world, number, kind, name, finish)
        self._parts_owner = world
        self._parts = parts

    def _await_result(self, timeout_s: float | None) -> Completion | None:
        parts = self._parts
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            wanted = parts.wanted
            completion, final = self._parts_owner.wait_part(
                self._number, wanted, left_s
            )
            if final < parts.copied:
                parts.restart()
            if completion is not None or final < wanted:
                return completion
            parts.take(final)
