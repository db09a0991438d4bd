"""Calls that torch starts together and waits for with one work object."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import distributed_c10d

from bluecomm.runtime import Handle
from bluecomm.torch_backend.calls import GroupCalls
from bluecomm.torch_backend.work import GroupWork


class Coalescing(GroupCalls):
    """The two hooks of ``torch.distributed._coalescing_manager``."""

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect the calls until ``_end_coalescing``; they start, but do not wait."""
        if (other := self._other_backends.group_for(device.type)) is not None:
            other._start_coalescing(device)
            return
        self._collected = GroupWork([], [])
        block = _block_of_caller()
        if block is not None:
            left = weakref.finalize(block, _abandon, weakref.ref(self), self._collected)
            left.atexit = False

    def _end_coalescing(self, device: torch.device) -> Any:
        """Return the work of all calls since ``_start_coalescing``.

        Raises:
            RuntimeError: ``_start_coalescing`` has not been called.
        """
        if (other := self._other_backends.group_for(device.type)) is not None:
            return other._end_coalescing(device)
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


def _block_of_caller() -> Any:
    """Return the generator of the manager that calls ``_start_coalescing``, if any.

    It lives until the program has left the ``with`` block.
    """
    frame = sys._getframe(2)  # the generator's; its caller is contextlib's __enter__
    if frame.f_code.co_name != "_coalescing_manager" or frame.f_back is None:
        return None
    return getattr(frame.f_back.f_locals.get("self"), "gen", None)


def _abandon(group_of: weakref.ref[Coalescing], collected: GroupWork) -> None:
    """Stop collecting if an error has ended the block, so that no hook was called.

    torch does not notice the error either, and would only list later calls.
    """
    group = group_of()
    if group is None or group._collected is not collected:
        return
    group._collected = None
    states: Any = distributed_c10d._world.pg_coalesce_state
    states.pop(group, None)
