"""Calls that torch starts together and waits for with one work object."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bluecomm.runtime import Handle
from bluecomm.torch_backend.calls import GroupCalls
from bluecomm.torch_backend.work import GroupWork


class Coalescing(GroupCalls):
    """The two hooks of ``torch.distributed._coalescing_manager``."""

    def _start_coalescing(self, _: torch.device) -> None:
        """Collect the calls until ``_end_coalescing``; they start, but do not wait."""
        self._collected = GroupWork([], [])

    def _end_coalescing(self, _: torch.device) -> GroupWork:
        """Return the work of all calls since ``_start_coalescing``.

        Raises:
            RuntimeError: ``_start_coalescing`` has not been called.
        """
        collected, self._collected = self._collected, None
        if collected is None:
            raise RuntimeError("_end_coalescing: the group is not collecting calls")
        return collected

    def _started(
        self,
        start: Callable[[], list[Handle[None]]],
        outputs: list[torch.Tensor],
        waits: bool,
    ) -> GroupWork | None:
        if self._collected is None:
            return super()._started(start, outputs, waits)
        self._collected.extend(start(), outputs)
        return None if waits else self._collected
