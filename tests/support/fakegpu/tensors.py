"""Tensors over the fake's device memory.

To torch they are on the CPU, but nobody except the fake can read their memory. They are
read and written as a kernel would: in the order of a stream, and late.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence

import torch

from tests.support.fakegpu.device import NON_BLOCKING, call, made
from tests.support.fakegpu.library import load

# Layouts of tensors that can be in device memory.
PLACED = {torch.strided, torch.sparse_coo}


class DeviceMemory:
    """Device memory of one device, and the current stream of the program there.

    Makes the device's context current on this thread.

    Args:
        ordinal: Number of the device.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self._cuda = load().cuda
        call("cuInit", 0)
        load().reset()
        self._context = made("cuDevicePrimaryCtxRetain", ordinal)
        call("cuCtxSetCurrent", self._context)
        self._free = self.allocate(1)  # maps the memory of all devices
        base, alias, size = (ctypes.c_uint64() for _ in range(3))
        self._cuda.fakegpu_arena(*map(ctypes.byref, (base, alias, size)))
        self._addresses = range(base.value, base.value + size.value)
        bytes_type = ctypes.c_uint8 * size.value
        self._bytes = torch.frombuffer(
            bytes_type.from_address(alias.value), dtype=torch.uint8
        )
        self._default = self._cuda.fakegpu_default_stream(ordinal)
        # Whether the model of DistributedDataParallel is on the device, so that its
        # buckets are.
        self.has_ddp = False
        # Whether FSDP2 shards models on the device, and makes its buffers there.
        self.has_fsdp = False
        self._of_thread = threading.local()
        # The operations in which torch would have waited on the host, in order.
        self.host_waits: list[str] = []

    @property
    def current_stream(self) -> int:
        """The handle of this thread's current stream; 0 is the default stream."""
        stream: int = getattr(self._of_thread, "stream", 0)
        return stream

    @current_stream.setter
    def current_stream(self, stream: int) -> None:
        self._of_thread.stream = stream

    @contextlib.contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        """Make a stream the current one of this thread; ``torch.cuda.stream``."""
        call("cuCtxSetCurrent", self._context)
        before, self.current_stream = self.current_stream, stream
        try:
            yield
        finally:
            self.current_stream = before

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Let another stream, the current one of the block, capture a CUDA graph."""
        with self.on_stream(self.new_stream()):
            self._cuda.fakegpu_set_capturing(self.stream, True)
            try:
                yield
            finally:
                self._cuda.fakegpu_set_capturing(self.stream, False)

    def new_stream(self) -> int:
        """Return a stream that does not wait for the default stream."""
        call("cuCtxSetCurrent", self._context)
        return int(made("cuStreamCreateWithPriority", NON_BLOCKING, 0))

    def synchronize(self) -> None:
        """Wait for this thread's current stream."""
        call("cuStreamSynchronize", self.stream)

    def lead_default_stream(self) -> None:
        """Make later work of the default stream wait for that of the current one."""
        event = made("cuEventCreate", 0)
        call("cuEventRecord", event, self.stream)
        call("cuStreamWaitEvent", self._default, event, 0)
        call("cuEventDestroy_v2", event)

    @property
    def stream(self) -> int:
        """The current stream, also for threads without a context."""
        return self.current_stream or self._default

    def allocate(self, nbytes: int) -> int:
        call("cuCtxSetCurrent", self._context)  # as torch does on any thread
        memory = int(made("cuMemAlloc_v2", nbytes, kind=ctypes.c_uint64))
        self._cuda.fakegpu_pool(memory)  # as torch's
        return memory

    def at(self, address: int, nbytes: int) -> torch.Tensor:
        """Return device memory that somebody else owns, as bytes."""
        buffer = (ctypes.c_uint8 * nbytes).from_address(address)
        return torch.frombuffer(buffer, dtype=torch.uint8)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor, or all that a sparse one consists of, is there."""
        if tensor.device.type != "cpu" or tensor.layout not in PLACED:
            return False
        if is_composed(type(tensor)) or torch.nn.parameter.is_lazy(tensor):
            return False
        if tensor.layout == torch.sparse_coo:
            return self.holds(tensor._values())
        return tensor.untyped_storage().data_ptr() in self._addresses

    def empty(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        strides: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Return a tensor that was never written, allocated on the current stream."""
        if strides is None:
            strides = _contiguous(shape)
        items = _span(shape, strides) or 1  # one without elements has memory, too
        nbytes = items * dtype.itemsize
        memory = self.allocate(nbytes)
        buffer = (ctypes.c_uint8 * nbytes).from_address(memory)
        weakref.finalize(
            buffer, self._cuda.fakegpu_free_on, self.stream, memory
        ).atexit = False
        flat = torch.frombuffer(buffer, dtype=torch.uint8).view(dtype)
        return flat.as_strided(tuple(shape), tuple(strides))

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor with the same values and strides in device memory.

        One that is there already is returned itself.
        """
        if self.holds(tensor):
            return tensor
        if tensor.layout == torch.sparse_coo:
            return _with_parts(tensor, self.upload, is_checked=False)
        strides = tensor.stride() if _is_dense(tensor) else None
        made = self.empty(tensor.shape, tensor.dtype, strides)
        self.write(made, tensor, "a copy to the device")
        return made

    def write(self, target: torch.Tensor, values: torch.Tensor, label: str) -> None:
        """Write values of the host, late, on the current stream."""
        if target.layout == torch.sparse_coo:
            target.data = self.upload(values)  # torch, too, allocates new entries
            return
        if target.is_conj():
            values = values.conj()
        if target.is_neg():
            values = -values
        dense = values.detach().to(target.dtype).expand(target.shape)
        dense = dense.contiguous().resolve_conj().resolve_neg()
        if not dense.numel():
            return
        item = target.dtype.itemsize
        longs = ctypes.c_long * max(1, target.dim())
        failed = self._cuda.fakegpu_write(
            self.stream,
            self._first_byte(target),
            _span(target.shape, target.stride()) * item,
            dense.data_ptr(),
            dense.numel(),
            target.dim(),
            longs(*target.shape),
            longs(*(stride * item for stride in target.stride())),
            item,
            label.encode(),
        )
        assert not failed, f"{label}: {load().violations()}"

    def read(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Return a copy on the host, as a kernel on the current stream reads it."""
        if tensor.layout == torch.sparse_coo:
            # Kernels of the host write anywhere if an index was not written yet.
            return _with_parts(
                tensor, lambda part: self.read(part, label), is_checked=True
            )
        nbytes = _span(tensor.shape, tensor.stride()) * tensor.dtype.itemsize
        if nbytes:
            first = self._first_byte(tensor)
            failed = self._cuda.fakegpu_access(
                self.stream, first, nbytes, 0, label.encode()
            )
            assert not failed, f"{label}: {load().violations()}"
            self._cuda.fakegpu_drain(self.stream)
            begin = first - self._addresses.start
            flat = self._bytes[begin : begin + nbytes].view(tensor.dtype)
        else:
            flat = torch.empty(0, dtype=tensor.dtype)
        seen = flat.as_strided(tensor.shape, tensor.stride())
        if tensor.is_conj():
            seen = seen.conj()
        if tensor.is_neg():
            seen = torch._neg_view(seen)
        return seen.clone(memory_format=torch.preserve_format)

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host, which waits for the current stream."""
        self.host_waits.append("a copy to the host")
        copy = self.read(tensor.detach(), "a copy to the host")
        self.synchronize()
        return copy

    def _first_byte(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage().data_ptr()
        return storage + tensor.storage_offset() * tensor.dtype.itemsize


def is_composed(kind: type) -> bool:
    """Return whether tensors of a class, such as DTensor, consist of other tensors."""
    passed = torch._C._disabled_torch_dispatch_impl
    return getattr(kind, "__torch_dispatch__", passed) is not passed


def _with_parts(
    tensor: torch.Tensor,
    change: Callable[[torch.Tensor], torch.Tensor],
    *,
    is_checked: bool,
) -> torch.Tensor:
    """Return a sparse tensor with its indices and values changed."""
    return torch.sparse_coo_tensor(
        change(tensor._indices()),
        change(tensor._values()),
        tensor.shape,
        is_coalesced=tensor.is_coalesced(),
        check_invariants=is_checked,
    )


def _contiguous(shape: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor."""
    products = itertools.accumulate(
        (max(1, size) for size in reversed(shape[1:])), operator.mul, initial=1
    )
    return [*products][::-1] if len(shape) else []


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of items from the first to the last one."""
    if 0 in shape:
        return 0
    return 1 + sum(
        (size - 1) * stride for size, stride in zip(shape, strides, strict=True)
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    return _span(tensor.shape, tensor.stride()) == math.prod(tensor.shape)
