"""Staging with CUDA's driver, whose copies do not stop the program."""

from __future__ import annotations

import collections
import contextlib
import math
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from bluecomm.device import runtime
from bluecomm.device.copy_counts import count_copy
from bluecomm.device.point import Point
from bluecomm.device.staging import HostCopy, Staging
from bluecomm.device.work_counts import WorkCount

if TYPE_CHECKING:
    from bluecomm._native import (
        ExportedMemory,
        Gate,
        MappedMemory,
        NcclCall,
        NcclLibrary,
        NcclPuts,
        NcclQueue,
        Recorder,
        StreamPoint,
    )

    # A copy or a call of NCCL, and the memory that it uses.
    _Use = tuple[Gate | NcclCall, object]

_LIBCUDA = "libcuda.so.1"
# With each copy or call, this many earlier ones are asked whether they have ended. More
# than one, so that their number does not grow.
_ASKED = 2


class CudaStaging(Staging):
    """Copies with CUDA's driver, without a stop of the program.

    Args:
        index: Number of the device among those that the process sees.
        recorder: Recorder of the timeline that shows what the device does, if any.

    Raises:
        RuntimeError: CUDA's driver cannot be used.
    """

    def __init__(self, index: int, recorder: Recorder | None = None) -> None:
        from bluecomm._native import CudaDevice

        self._index = index
        self._device = CudaDevice(_LIBCUDA, index)
        # Copies and calls that may still run.
        self._running: collections.deque[_Use] = collections.deque()
        self._lock = threading.Lock()
        self.trace(recorder)

    @property
    def name(self) -> str:
        return f"cuda:{self._index}"

    @property
    def index(self) -> int:
        """Number of the device among those that the process sees."""
        return self._index

    def name_rank(self, rank: int) -> None:
        """Have errors of CUDA name the rank of this process."""
        self._device.name_rank(rank)

    def export(self, nbytes: int) -> ExportedMemory:
        """Return new memory of the device that other processes may map.

        Raises:
            RuntimeError: CUDA cannot allocate or export it.
        """
        return self._device.export_memory(nbytes)

    def map(self, handle: bytes) -> MappedMemory:
        """Map the memory that another process of this machine has exported.

        Raises:
            RuntimeError: CUDA cannot map it.
        """
        return self._device.map_memory(handle)

    def at(self, address: int, nbytes: int) -> torch.Tensor:
        """Return memory of the device, which the caller owns, as a tensor of bytes."""
        return runtime.current_runtime().at(address, nbytes, self._index)

    def copy(self, source: int, destination: int, nbytes: int) -> None:
        """Copy between addresses of devices, in the order of the current stream.

        Raises:
            RuntimeError: CUDA has failed, or the stream captures a CUDA graph.
        """
        self._device.copy_on_device(source, destination, nbytes, self.current_stream())

    def make_nccl_puts(self, library: NcclLibrary, nbytes: int) -> NcclPuts:
        """Return new memory of the device into which other ranks put.

        Raises:
            RuntimeError: NCCL is older than 2.29.2, or the memory cannot be allocated.
        """
        from bluecomm._native import NcclPuts

        return NcclPuts(library=library, device=self._device, nbytes=nbytes)

    def make_nccl_queue(
        self, library: NcclLibrary, rank: int, *, awaits_device: bool
    ) -> NcclQueue:
        """Return a new queue of calls of NCCL on the device.

        Args:
            library: NCCL.
            rank: This rank.
            awaits_device: Whether operations end only when the device has finished
                their calls.

        Raises:
            RuntimeError: NCCL or the device cannot be used.
        """
        from bluecomm._native import NcclQueue

        return NcclQueue(
            library=library,
            device=self._device,
            rank=rank,
            awaits_device=awaits_device,
        )

    def trace(self, recorder: Recorder | None) -> None:
        """Show what the device does from now on in a timeline, or stop that."""
        if recorder is None:
            self._device.stop_trace()
        else:
            self._device.start_trace(recorder)

    def collect_trace(self) -> int:
        """Show in the timeline what the device has finished.

        Returns:
            The number of copies and calls of NCCL that it has not finished.
        """
        return self._device.collect_trace()

    def work(self) -> dict[str, WorkCount]:
        """Return the counters of copies and calls that are known to have ended."""
        self.release_ended()
        return {
            kind: WorkCount(count, nbytes, ns * 1e-9)
            for kind, (count, nbytes, ns) in self._device.work().items()
        }

    def current_stream(self) -> int:
        return runtime.current_runtime().current_stream(self._index)

    def to_host(
        self,
        tensor: torch.Tensor,
        *,
        into: torch.Tensor | None = None,
        after: Iterable[int] = (),
    ) -> HostCopy:
        values = into
        if values is None:
            values = self.empty_on_host(tensor.shape, tensor.dtype)
        if not tensor.nbytes:
            return HostCopy(values, None)
        copy = self._device.copy_to_host(
            tensor.data_ptr(),
            values.data_ptr(),
            tensor.nbytes,
            [*{self.current_stream(), *after}],
        )
        self.keep(copy, (tensor, values))
        count_copy(to_host=tensor.nbytes)
        return HostCopy(values, copy)

    def empty_on_host(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        count = math.prod(shape)
        if not count:
            return torch.empty(tuple(shape), dtype=dtype)
        block = self._device.allocate(count * dtype.itemsize)
        return torch.frombuffer(block, dtype=dtype, count=count).view(tuple(shape))

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return runtime.current_runtime().empty(shape, dtype, self._index)

    def point(self) -> StreamPoint | None:
        return self._device.point_behind(self.current_stream())

    def follow(self, point: Point | None) -> None:
        if point is not None:
            from bluecomm._native import StreamPoint

            assert isinstance(point, StreamPoint)
            self._device.wait_for(point, self.current_stream())

    def follow_streams(self, streams: Iterable[int]) -> None:
        current = self.current_stream()
        for stream in {*streams} - {current}:
            self._device.wait_for(self._device.point_behind(stream), current)

    def keep_for_stream(self, memory: object) -> None:
        if (point := self.point()) is not None:
            self.keep(point, memory)

    def new_future(self) -> torch.futures.Future[Any]:
        return runtime.current_runtime().new_future(self._index)

    def stream_context(self) -> contextlib.AbstractContextManager[Any]:
        return runtime.current_runtime().stream_context(self._index)

    def side_stream_context(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which the side stream is current.

        It is a stream of bluecomm for kernels that wait for other ranks, so that the
        streams of the program do not wait with them. The context may be entered again
        when it has been left.
        """
        return runtime.current_runtime().side_stream_context(self._index)

    def fill(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        if not values.nbytes:
            return
        copy = self._device.copy_to_device(
            values.data_ptr(), tensor.data_ptr(), values.nbytes, self.current_stream()
        )
        # Torch reuses the memory of `tensor` in the order of this stream.
        self.keep(copy, values)
        count_copy(to_device=values.nbytes)

    def keep(self, use: Gate | NcclCall, memory: object) -> None:
        """Keep memory until a copy or call has ended.

        This also drops the memory of at most ``_ASKED`` earlier ones that have ended.

        Args:
            use: The copy or call.
            memory: Objects that it uses.
        """
        self._drop_ended(_ASKED)
        with self._lock:
            self._running.append((use, memory))

    def release_ended(self) -> None:
        """Drop the memory of all copies and calls that have ended."""
        self._drop_ended(len(self._running))

    def _drop_ended(self, most: int) -> None:
        """Drop memory of copies and calls that have ended; ask at most ``most``."""
        # Dropped without the lock, because memory may go back to the system.
        ended: list[_Use] = []
        with self._lock:
            for _ in range(min(most, len(self._running))):
                earlier = self._running.popleft()
                is_running = earlier[0].poll() is None
                (self._running if is_running else ended).append(earlier)
