"""Copies tensors of devices to the host, where the engine works, and back.

docs/gpu.md describes the life of an operation on such a tensor.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import math
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from bluecomm.device import runtime
from bluecomm.device.copy_back import CopyBack
from bluecomm.device.copy_counts import count_copy
from bluecomm.device.work_counts import WorkCount, total_of
from bluecomm.errors import BluecommError, CommunicationTimeout

if TYPE_CHECKING:
    from bluecomm._native import (
        Completion,
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
# Devices of torch without a driver that bluecomm knows: copies block the program.
_BLOCKING_TYPES = frozenset({"mps"})
# How often a thread looks whether a copy has ended.
_POLL_S = 0.0001
# How long a timeline waits for what devices have begun, and how often it looks.
_TRACE_S = 10.0
_TRACE_POLL_S = 0.001
# With each copy or call, this many earlier ones are asked whether they have ended. More
# than one, so that their number does not grow.
_ASKED = 2


class Point(Protocol):
    """A point in the order of a device's stream."""

    def poll(self) -> Completion | None:
        """Return the outcome of all work before the point, once it has ended."""


class HostCopy(NamedTuple):
    """A tensor's values on their way to the host.

    Attributes:
        values: Contiguous tensor on the host that gets the values.
        gate: Opens when they are there, and says before how many of the first ones
            are; ``None`` if all are.
    """

    values: torch.Tensor
    gate: Gate | None

    def wait(self, operation: str, timeout_s: float) -> None:
        """Wait until the values are there; see ``wait_on_host``."""
        if self.gate is not None:
            wait_on_host(self.gate, operation, timeout_s)


class Staging(abc.ABC):
    """Copies the tensors of one device to the host and back. Thread-safe."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Torch's name of the device, such as ``cuda:0``."""

    @abc.abstractmethod
    def current_stream(self) -> int:
        """Return the number of the stream on which the program computes."""

    @abc.abstractmethod
    def to_host(
        self,
        tensor: torch.Tensor,
        *,
        into: torch.Tensor | None = None,
        after: Iterable[int] = (),
    ) -> HostCopy:
        """Copy a contiguous tensor, in the order of the program's current stream.

        Args:
            tensor: Tensor on the device. It must not change before the copy has ended;
                it is kept until then.
            into: Contiguous memory of ``empty_on_host`` for the values, as large as
                ``tensor``. Default: new memory.
            after: Other streams whose work so far the copy waits for, too.

        Raises:
            RuntimeError: CUDA has failed, or a stream captures a CUDA graph.
        """

    @abc.abstractmethod
    def empty_on_host(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialized tensor on the host that copies fast."""

    @abc.abstractmethod
    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialized tensor on the device."""

    @abc.abstractmethod
    def fill(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Do what ``write`` does for a contiguous tensor, unseen by autograd.

        The memory of ``tensor`` gets the values, also if it is a conjugate view.
        """

    @abc.abstractmethod
    def point(self) -> Point | None:
        """Return the point behind what the current stream has been given so far.

        Returns:
            The point; ``None`` if the program waits for all that it starts.

        Raises:
            RuntimeError: As in ``to_host``.
        """

    @abc.abstractmethod
    def follow(self, point: Point | None) -> None:
        """Make later work of the current stream wait for a point of this device.

        Raises:
            RuntimeError: CUDA has failed.
        """

    @abc.abstractmethod
    def follow_streams(self, streams: Iterable[int]) -> None:
        """Make later work of the current stream wait for the work of others so far.

        Args:
            streams: Numbers of the streams, as of ``current_stream``.

        Raises:
            RuntimeError: CUDA has failed.
        """

    @abc.abstractmethod
    def new_future(self) -> torch.futures.Future[Any]:
        """Return a future whose callbacks compute on a stream of their own."""

    def stream_context(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which any thread computes as this one.

        It may be entered again when it has been left.

        The stream that is current now is then current there, if there are streams.
        """
        return contextlib.nullcontext()

    def write(self, tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write values of the host to a tensor, in the order of the current stream.

        The program need not wait for the copy before it uses ``tensor``.

        Args:
            tensor: Tensor on the device.
            values: Contiguous tensor on the host with as many elements. It must not
                change afterwards.

        Returns:
            ``tensor``.

        Raises:
            RuntimeError: As in ``to_host``.
        """
        return CopyBack(self, values, tensor).finish()

    def copy_back(
        self,
        values: torch.Tensor,
        target: torch.Tensor | None,
        after: Point | None = None,
    ) -> CopyBack:
        """Return what copies a result to the device while it is being computed.

        Args:
            values: Memory of ``empty_on_host`` that gets the result.
            target: As for ``CopyBack``.
            after: As for ``CopyBack``.
        """
        nbytes = self._part_nbytes(values.nbytes)
        return CopyBack(self, values, target, nbytes, after)

    def _part_nbytes(self, nbytes: int) -> int:
        from bluecomm._native import copy_part_nbytes

        return copy_part_nbytes(nbytes)

    def to_device(self, values: torch.Tensor) -> torch.Tensor:
        """Return a new tensor on the device with values of the host; see ``write``."""
        return CopyBack(self, values, None).finish()


class CudaStaging(Staging):
    """Copies with CUDA's driver, without a stop of the program.

    Args:
        index: Number of the device among those that the process sees.

    Raises:
        RuntimeError: CUDA's driver cannot be used.
    """

    def __init__(self, index: int) -> None:
        from bluecomm._native import CudaDevice

        self._index = index
        self._device = CudaDevice(_LIBCUDA, index)
        # Copies and calls that may still run.
        self._running: collections.deque[_Use] = collections.deque()
        self._lock = threading.Lock()
        self.trace(_recorder)

    @property
    def name(self) -> str:
        return f"cuda:{self._index}"

    @property
    def index(self) -> int:
        """Number of the device among those that the process sees."""
        return self._index

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

    def new_future(self) -> torch.futures.Future[Any]:
        return runtime.current_runtime().new_future(self._index)

    def stream_context(self) -> contextlib.AbstractContextManager[Any]:
        return runtime.current_runtime().stream_context(self._index)

    def side_stream_context(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which kernels run on bluecomm's own stream.

        They do not hold up the program's. The context may be entered again when it has
        been left.
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
        """Keep memory until a copy or call has ended, and drop that of earlier ones.

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


class BlockingStaging(Staging):
    """Copies with torch, which stops the program until a copy has ended.

    Args:
        like: Tensor on the device.
    """

    def __init__(self, like: torch.Tensor) -> None:
        self._like = like

    @property
    def name(self) -> str:
        return str(self._like.device)

    def current_stream(self) -> int:
        return 0

    def to_host(
        self,
        tensor: torch.Tensor,
        *,
        into: torch.Tensor | None = None,
        after: Iterable[int] = (),
    ) -> HostCopy:
        if into is None:
            return HostCopy(tensor.cpu(), None)
        with torch.no_grad():
            return HostCopy(into.copy_(tensor.view(into.shape)), None)

    def empty_on_host(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self._like.new_empty(tuple(shape), dtype=dtype)

    def point(self) -> Point | None:
        return None

    def follow(self, point: Point | None) -> None:
        pass

    def follow_streams(self, streams: Iterable[int]) -> None:
        pass

    def new_future(self) -> torch.futures.Future[Any]:
        return torch.futures.Future()

    def fill(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        tensor.data.copy_(values.view(tensor.shape))


_cuda: dict[int, CudaStaging] = {}
_blocking: dict[torch.device, Staging] = {}
# Shows the work of CUDA devices in a timeline, if there is one.
_recorder: Recorder | None = None


def trace_devices(recorder: Recorder | None) -> None:
    """Show what CUDA devices do from now on in a timeline.

    Args:
        recorder: Recorder of the timeline. ``None`` records what devices have finished,
            and stops.

    Raises:
        RuntimeError: CUDA has failed.
    """
    global _recorder
    _recorder = recorder
    for staging in list(_cuda.values()):
        staging.trace(recorder)


def await_trace() -> None:
    """Wait until all that devices have begun is in the timeline, at most 10 s."""
    deadline = time.monotonic() + _TRACE_S
    for staging in list(_cuda.values()):
        while staging.collect_trace() and time.monotonic() < deadline:
            time.sleep(_TRACE_POLL_S)


def device_work() -> dict[str, WorkCount]:
    """Return the counters of what all CUDA devices have done, by kind."""
    return total_of(staging.work() for staging in list(_cuda.values()))


def release_ended() -> None:
    """Drop the memory of what CUDA devices have finished, as no later copy might."""
    for staging in list(_cuda.values()):
        staging.release_ended()


def staging_of(tensor: torch.Tensor) -> Staging | None:
    """Return what copies a tensor to the host; ``None`` if it is not on a device.

    The same device has the same staging.

    Raises:
        RuntimeError: CUDA's driver cannot be used.
    """
    if tensor.is_cpu and not runtime.is_replaced:
        return None
    index = runtime.current_runtime().index_of(tensor)
    if index is not None:
        return cuda_staging(index)
    if tensor.device.type in _BLOCKING_TYPES:
        return _blocking.setdefault(
            tensor.device, BlockingStaging(tensor.detach().new_empty(0))
        )
    return None


def cuda_staging(index: int) -> CudaStaging:
    """Return the staging of a CUDA device among those that the process sees.

    Raises:
        RuntimeError: CUDA's driver cannot be used.
    """
    # Two threads may make the first one, but both get the same.
    return _cuda.get(index) or _cuda.setdefault(index, CudaStaging(index))


def values_on_host(
    tensor: torch.Tensor, operation: str, timeout_s: float
) -> torch.Tensor:
    """Return a contiguous tensor's values on the host: itself, if it is there.

    Waits until the device has computed it.

    Raises:
        CommunicationTimeout: The device has not got there in time.
        BluecommError: Work that the program has started on the device failed.
        RuntimeError: As in ``Staging.to_host``.
    """
    staging = staging_of(tensor)
    if staging is None:
        return tensor
    copy = staging.to_host(tensor)
    copy.wait(operation, timeout_s)
    return copy.values


def values_beside(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return contiguous values of the host where a tensor is; see ``Staging.write``.

    Raises:
        RuntimeError: As in ``Staging.to_host``.
    """
    staging = staging_of(tensor)
    return values if staging is None else staging.to_device(values)


def copied_fast(staging: Staging, values: torch.Tensor) -> torch.Tensor:
    """Return a copy of values of the host on a device, without a wait for the device.

    CUDA blocks the program while it copies memory that is not page-locked, so this
    copies them to such memory first. They may change afterwards.

    Raises:
        RuntimeError: As in ``Staging.to_host``.
    """
    fast = staging.empty_on_host(values.shape, values.dtype)
    return staging.to_device(fast.copy_(values))


def wait_on_host(gate: Point, operation: str, timeout_s: float) -> None:
    """Wait until the device has finished the work before a gate.

    Raises:
        CommunicationTimeout: The device has not got there in time.
        BluecommError: Work that the program has started on the device failed.
    """
    deadline = time.monotonic() + timeout_s
    while (outcome := gate.poll()) is None:
        if time.monotonic() >= deadline:
            raise CommunicationTimeout(
                f"{operation}: the device has not finished within {timeout_s:g} s "
                "what the program started before this call; pass a larger "
                "timeout_s, or find the kernel that does not end",
                operation=operation,
                timeout_s=timeout_s,
            )
        time.sleep(_POLL_S)
    if outcome.code:
        raise BluecommError(f"{operation}: {outcome.text}", operation=operation)
