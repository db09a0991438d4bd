"""The calls of one world that go through NCCL.

docs/notes/nccl-backend.md describes their states, and the order of their numbers.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bluecomm.device.nccl import nccl_library

if TYPE_CHECKING:
    from bluecomm._native import Engine, NcclLibrary, NcclQueue
    from bluecomm.device.cuda_staging import CudaStaging
    from bluecomm.runtime.device_transport import DeviceTransport

_log = logging.getLogger("bluecomm")


class QueueOwner(Protocol):
    """The attributes of a world that its queue needs."""

    rank: int

    @property
    def engine(self) -> Engine:
        """The native engine, which tells the queue of lost ranks."""

    @property
    def device_transport(self) -> DeviceTransport:
        """The path of tensors on devices."""

    def check_usable(self) -> None:
        """Raise ``ShutdownError`` unless operations can run."""


class NcclCounts(NamedTuple):
    """Counters of one rank's calls of NCCL.

    Attributes:
        calls: Calls that the rank has made.
        nbytes: Bytes of their inputs.
        communicators: Communicators that exist now.
    """

    calls: int = 0
    nbytes: int = 0
    communicators: int = 0


class NcclCalls:
    """The queue of this rank's calls of NCCL, which is made with the first one.

    Args:
        world: World whose ranks take part.
        awaits_device: Whether operations end only when the device has finished them.
    """

    def __init__(self, world: QueueOwner, *, awaits_device: bool) -> None:
        self._world = world
        self._awaits_device = awaits_device
        # A signal handler may end the world while this thread makes the queue.
        self._lock = threading.RLock()
        self._queue: NcclQueue | None = None
        self._staging: CudaStaging | None = None
        # Groups whose communicators exist, or are about to.
        self._groups: set[int] = set()
        self._calls = 0
        self._nbytes = 0

    @property
    def staging(self) -> CudaStaging | None:
        """Staging of the queue's device; ``None`` before the first call."""
        with self._lock:
            return self._staging

    def queue_of(self, staging: CudaStaging) -> NcclQueue:
        """Return the queue, on the device of ``staging``.

        Raises:
            RuntimeError: NCCL or the device cannot be used, or ranks have different
                versions of NCCL.
            ValueError: The calls before were on another device.
            ShutdownError: After ``shutdown``.
        """
        world = self._world
        with self._lock:
            world.check_usable()
            if self._queue is None:
                if conflict := world.device_transport.conflict:
                    raise _unusable(world.rank, staging.index, conflict)
                library = _load(world.rank, staging.index)
                queue = staging.make_nccl_queue(
                    library, world.rank, awaits_device=self._awaits_device
                )
                world.engine.watch_failures(queue)
                self._queue, self._staging = queue, staging
                _log.info(
                    "rank %d: the operations of the documentation's page on GPUs go "
                    "through NCCL on CUDA device %d (NCCL %s), others through the host",
                    world.rank,
                    staging.index,
                    library.version,
                )
            elif staging is not self._staging:
                assert self._staging is not None
                raise ValueError(
                    f"rank {world.rank} calls NCCL on CUDA device "
                    f"{self._staging.index}, but this tensor is on device "
                    f"{staging.index}; call "
                    "torch.cuda.set_device(bluecomm.local_device()) first, and make "
                    "all tensors on that device"
                )
            return self._queue

    def count(self, group_id: int, nbytes: int) -> None:
        """Count a call of a group, whose input has this many bytes."""
        with self._lock:
            self._groups.add(group_id)
            self._calls += 1
            self._nbytes += nbytes

    def counts(self) -> NcclCounts:
        """Return the counts since the last ``reset_counts``."""
        with self._lock:
            return NcclCounts(self._calls, self._nbytes, len(self._groups))

    def reset_counts(self) -> None:
        """Count calls and bytes from 0 again."""
        with self._lock:
            self._calls = self._nbytes = 0

    def forget(self, group_id: int) -> None:
        """End the communicator of a group that the engine has forgotten."""
        with self._lock:
            self._groups.discard(group_id)
            if self._queue is not None:
                self._queue.forget_group(group_id)

    def suspend(self) -> None:
        """Stop the queue's thread until ``resume`` or ``close``."""
        with self._lock:
            if self._queue is not None:
                self._queue.suspend()

    def resume(self) -> None:
        """Continue after ``suspend``."""
        with self._lock:
            if self._queue is not None:
                self._queue.resume()

    def close(self, timeout_s: float) -> None:
        """Finish the calls that NCCL has received; abort them after ``timeout_s``."""
        with self._lock:
            if self._queue is not None:
                self._queue.close(timeout_s)

    def release(self) -> None:
        """Give the queue's stream back to CUDA, once the world has closed its engine.

        Otherwise this would wait for Python's garbage collection.
        """
        with self._lock:
            if self._queue is not None:
                self._world.engine.watch_failures(None)
                self._queue = None


def _load(rank: int, index: int) -> NcclLibrary:
    """Return NCCL; an error names the rank and the device."""
    try:
        return nccl_library()
    except RuntimeError as error:
        raise _unusable(rank, index, str(error)) from error


def _unusable(rank: int, index: int, reason: str) -> RuntimeError:
    return RuntimeError(
        f"rank {rank} cannot call NCCL on CUDA device {index}: {reason}"
    )
