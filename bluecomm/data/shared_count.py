"""A number that a process shares with its forks and with the workers of its loaders."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


class SharedCount:
    """Counts events in this process, its forks and workers that it spawns, together.

    Two processes that count at the same moment may both be told that they are first,
    and one of their events may be missing. If the machine has no shared memory left,
    each process counts for itself.
    """

    def __init__(self) -> None:
        shared = torch.zeros(1, dtype=torch.int64)
        with contextlib.suppress(RuntimeError):
            shared.share_memory_()  # type: ignore[no-untyped-call]
        self.__setstate__({"shared": shared})

    @property
    def value(self) -> int:
        """The number of events until now."""
        return int(self._value[0])

    def add(self) -> bool:
        """Count an event; return whether it is the first one."""
        is_first = self.value == 0
        self._value[0] += 1
        return is_first

    def __getstate__(self) -> dict[str, Any]:
        """Return the tensor, which a spawned worker receives as shared memory."""
        return {"shared": self._shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Continue with the memory of another process."""
        self._shared: torch.Tensor = state["shared"]
        self._value = self._shared.numpy()
