"""The facts about CUDA devices that bluecomm asks torch for.

Tests replace the runtime by one whose devices are imitations; see ``use``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch


class DeviceRuntime(Protocol):
    """The memory and the streams of CUDA devices, as the program uses them."""

    def count(self) -> int:
        """Return the number of CUDA devices that the process sees."""

    def index_of(self, tensor: torch.Tensor) -> int | None:
        """Return the number of a tensor's CUDA device, or ``None`` if it has none."""

    def current_stream(self, index: int) -> int:
        """Return the handle of the stream on which the program computes."""

    def empty(
        self, shape: Sequence[int], dtype: torch.dtype, index: int
    ) -> torch.Tensor:
        """Return an uninitialized tensor on a device, for the current stream."""

    def stream_context(self, index: int) -> contextlib.AbstractContextManager[Any]:
        """Return a context, entered once, that makes the current stream current."""

    def new_future(self, index: int) -> torch.futures.Future[Any]:
        """Return a future whose callbacks compute on a stream of their own."""


class TorchRuntime(DeviceRuntime):
    """The devices of torch."""

    def count(self) -> int:
        return torch.cuda.device_count()

    def index_of(self, tensor: torch.Tensor) -> int | None:
        return tensor.device.index if tensor.is_cuda else None

    def current_stream(self, index: int) -> int:
        return torch.cuda.current_stream(index).cuda_stream

    def empty(
        self, shape: Sequence[int], dtype: torch.dtype, index: int
    ) -> torch.Tensor:
        return torch.empty(
            tuple(shape), dtype=dtype, device=torch.device("cuda", index)
        )

    def stream_context(self, index: int) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.stream(torch.cuda.current_stream(index))

    def new_future(self, index: int) -> torch.futures.Future[Any]:
        return torch.futures.Future(devices=[torch.device("cuda", index)])


_current: DeviceRuntime = TorchRuntime()
# Whether a runtime stands in for torch's, whose tensors may seem to be on the CPU.
is_replaced = False


def current_runtime() -> DeviceRuntime:
    """Return the runtime in use."""
    return _current


@contextlib.contextmanager
def use(runtime: DeviceRuntime) -> Iterator[None]:
    """Replace torch's runtime while the context lasts."""
    global _current, is_replaced
    before = _current, is_replaced
    _current, is_replaced = runtime, True
    try:
        yield
    finally:
        _current, is_replaced = before
