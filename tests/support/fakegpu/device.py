"""The fake's CUDA calls as a program would make them; each raises what fails."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tests.support.fakegpu.library import Libraries, handle, load

NON_BLOCKING = 1
NOT_READY = 600


class CudaError(RuntimeError):
    """A call returned an error."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} returned {code}")
        self.code = code


def call(name: str, *arguments: Any) -> None:
    """Call a function of libcuda.

    Raises:
        CudaError: It did not return success.
    """
    function: Callable[..., int] = getattr(load().cuda, name)
    if code := function(*arguments):
        raise CudaError(name, code)


def made(name: str, *arguments: Any, kind: Any = handle) -> Any:
    """Return what a function of libcuda writes to its first argument."""
    out = kind()
    call(name, ctypes.byref(out), *arguments)
    return out.value


class Device:
    """A device whose context is current on this thread, and short names for calls."""

    def __init__(self, ordinal: int = 0) -> None:
        self.libraries: Libraries = load()
        call("cuInit", 0)
        self.libraries.reset()
        self.ordinal = ordinal
        self.context = made("cuDevicePrimaryCtxRetain", ordinal)
        call("cuCtxSetCurrent", self.context)

    def stream(self) -> Any:
        return made("cuStreamCreateWithPriority", NON_BLOCKING, 0)

    def event(self, flags: int = 0) -> Any:
        return made("cuEventCreate", flags)

    def allocate(self, nbytes: int) -> int:
        return int(made("cuMemAlloc_v2", nbytes, kind=ctypes.c_uint64))

    def pinned(self, data: bytes) -> Any:
        """Return the address of pinned memory with this content."""
        memory = made("cuMemHostAlloc", len(data), 0)
        ctypes.memmove(memory, data, len(data))
        return memory

    def fill(self, target: int, value: int, nbytes: int, stream: Any) -> None:
        call("cuMemsetD8Async", target, value, nbytes, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        call("cuMemcpyAsync", target, source, nbytes, stream)

    def record(self, stream: Any) -> Any:
        event = self.event()
        call("cuEventRecord", event, stream)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        call("cuStreamWaitEvent", stream, event, 0)

    def hold(self, stream: Any, on: bool = True) -> None:
        self.libraries.cuda.fakegpu_hold(stream, on)

    def read(self, source: int, nbytes: int, stream: Any) -> bytes:
        """Return bytes of device memory, as the stream sees them."""
        data = ctypes.create_string_buffer(nbytes)
        call("cuMemcpyDtoHAsync_v2", ctypes.addressof(data), source, nbytes, stream)
        return data.raw

    def violations(self) -> list[str]:
        return self.libraries.violations()
