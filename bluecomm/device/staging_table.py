"""The staging of each device that this process uses, made on first use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from bluecomm.device import runtime
from bluecomm.device.blocking_staging import BlockingStaging
from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.staging import Staging
from bluecomm.device.work_counts import WorkCount, total_of

if TYPE_CHECKING:
    from bluecomm._native import Recorder

# Devices of torch without a driver that bluecomm knows: copies block the program.
_BLOCKING_TYPES = frozenset({"mps"})
# How long a timeline waits for what devices have begun, and how often it looks.
_TRACE_S = 10.0
_TRACE_POLL_S = 0.001

_cuda: dict[int, CudaStaging] = {}
_blocking: dict[torch.device, Staging] = {}
# Shows the work of CUDA devices in a timeline, if there is one.
_recorder: Recorder | None = None
# The rank of this process, once it has one.
_rank: int | None = None


def name_rank(rank: int) -> None:
    """Have errors of CUDA name the rank of this process."""
    global _rank
    _rank = rank
    for staging in list(_cuda.values()):
        staging.name_rank(rank)


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
    """Drop the memory of all copies and calls that have ended on CUDA devices.

    A later copy would do so, but there may be none.
    """
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
    """Return the staging of a CUDA device.

    Args:
        index: Number of the device among those that the process sees.

    Raises:
        RuntimeError: CUDA's driver cannot be used.
    """
    if (found := _cuda.get(index)) is not None:
        return found
    made = CudaStaging(index, _recorder)
    if _rank is not None:
        made.name_rank(_rank)
    # Two threads may make the first one, but both get the same.
    return _cuda.setdefault(index, made)
