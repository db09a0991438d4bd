"""Ranges such as ``bluecomm:all_reduce`` in torch's profiler."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import profiler

from bluecomm.torch_backend.work import GroupWork


def is_on() -> bool:
    """Return whether torch's profiler records."""
    return bool(getattr(profiler, "_is_profiler_enabled", False))


def call_range(
    operation: str, tensors: Sequence[torch.Tensor]
) -> contextlib.AbstractContextManager[Any]:
    """Return a range that lasts as long as a call that waits, with its shapes."""
    fast: Any = torch._C._profiler._RecordFunctionFast
    return fast(f"bluecomm:{operation}", list(tensors))  # type: ignore[no-any-return]


class WorkRange:
    """A range from the start of an asynchronous call until its operations have ended.

    Args:
        operation: torch's name of the call.
        tensors: Tensors whose shapes the range shows.
    """

    def __init__(self, operation: str, tensors: Sequence[torch.Tensor]) -> None:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        self._range = profiler.record_function(f"bluecomm:{operation}", shapes)
        self._range.__enter__()  # type: ignore[no-untyped-call]

    def end_with(self, work: GroupWork | None) -> None:
        """End the range with the work; without one the call has failed: now."""
        if work is None:
            self._range.__exit__(None, None, None)
        else:
            ended = self._range._call_end_callbacks_on_future(work.get_future())
            work.ends_with(ended)
