"""Streams, events and memory for FSDP2, which takes them from a module of torch.

To torch, the fake's tensors are on the CPU. So FSDP2 asks ``torch.cpu``, whose streams
do nothing, and resizes storages, which the fake's memory cannot do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from tests.support.fakegpu.device import call, made
from tests.support.fakegpu.tensors import DeviceMemory


class _Event:
    """The part of ``torch.cuda.Event`` that FSDP2 uses."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._handle = made("cuEventCreate", 0)

    def record(self, stream: _Stream | None = None) -> None:
        call(
            "cuEventRecord",
            self._handle,
            self._memory.stream if stream is None else stream.handle,
        )

    def lead(self, stream: int) -> None:
        """Make later work of a stream wait for what the event has recorded."""
        call("cuStreamWaitEvent", stream, self._handle, 0)

    def synchronize(self) -> None:
        call("cuEventSynchronize", self._handle)


class _Stream:
    """The part of ``torch.cuda.Stream`` that FSDP2 uses. 0 is the default stream."""

    def __init__(self, memory: DeviceMemory, number: int) -> None:
        self._memory = memory
        self.number = number

    @property
    def handle(self) -> int:
        with self._memory.on_stream(self.number):
            return self._memory.stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event(self._memory)
        event.record(self)
        return event

    def wait_event(self, event: _Event) -> None:
        event.lead(self.handle)

    def wait_stream(self, stream: _Stream) -> None:
        self.wait_event(stream.record_event())


@contextlib.contextmanager
def fsdp_on_device(memory: Any) -> Iterator[None]:
    """Let FSDP2 compute on a device.

    Args:
        memory: The ``DeviceMemory`` of the fake. With anything else nothing changes.
    """
    if not isinstance(memory, DeviceMemory):
        yield
        return
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    def free(tensor: torch.Tensor) -> None:
        # The allocator may give the memory to a later tensor at once.
        pattern = torch.full(tensor.shape, 0xA5, dtype=torch.uint8).to(tensor.dtype)
        memory.write(tensor, pattern, "a free by FSDP2")

    module = {
        "Stream": lambda priority=0: _Stream(memory, memory.new_stream()),
        "Event": lambda: _Event(memory),
        "current_stream": lambda: _Stream(memory, memory.current_stream),
        "stream": lambda stream: memory.on_stream(stream.number),
    }
    storages = {"alloc_storage": lambda tensor: None, "free_storage": free}
    with (
        mock.patch.multiple(torch.cpu, **module),
        mock.patch.multiple(_fsdp_param, **storages),
        mock.patch.object(memory, "has_fsdp", True),
    ):
        yield
