"""Differences between the versions of torch that the backend supports."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from bluecomm_autoload import NAME

# torch 2.4 waits for the work of synchronous collectives, too, and its C++ code does
# not keep the Python part of a work alive.
NEEDS_WORK = not hasattr(c10d.AllreduceOptions, "asyncOp")

# Works that nobody has waited for, and those of several tensors that were waited for
# last: functional collectives wait once for each tensor.
_held: set[object] = set()
_last: collections.deque[object] = collections.deque(maxlen=16)


def is_async(options: Any) -> bool:
    """Return whether the caller of a collective wants a work object."""
    return NEEDS_WORK or bool(options.asyncOp)


def hold(work: object) -> None:
    """Keep a work alive until it is released, unless torch does."""
    if NEEDS_WORK:
        _held.add(work)


def release(work: object, outputs: int) -> None:
    """Stop keeping a work of so many tensors alive, as its caller waits for it."""
    if NEEDS_WORK and work in _held:
        _held.discard(work)
        if outputs > 1:
            _last.append(work)


def group_of_backends(
    store: c10d.Store, rank: int, size: int, name: str
) -> c10d.ProcessGroup:
    """Return a group of torch to which backends can be added.

    Args:
        store: Store of the group.
        rank: Number of this rank in the group.
        size: Number of ranks in the group.
        name: Name of the first backend. With torch 2.4 it stays the one for calls
            without tensors.
    """
    options = getattr(c10d.ProcessGroup, "Options", None)
    more = () if options is None else (options(name),)
    group: c10d.ProcessGroup = c10d.ProcessGroup(store, rank, size, *more)
    return group


def serve_calls_without_tensors(group: c10d.ProcessGroup, kind: Any) -> None:
    """Let the backend of a kind serve them, such as barriers, unless torch is 2.4."""
    if hasattr(group, "_set_default_backend"):
        group._set_default_backend(kind)


def shut_down(group: c10d.ProcessGroup, devices: Iterable[str]) -> None:
    """End the backends that a group of torch has for types of devices."""
    if hasattr(group, "shutdown"):
        group.shutdown()
        return
    # With torch 2.4 only the backend of NCCL has this method; Gloo's ends when it is
    # freed.
    for device in devices:
        backend = group._get_backend(torch.device(device))
        getattr(backend, "_shutdown", lambda: None)()


def is_shutdown_by_torch(caller: FrameType | None) -> bool:
    """Return whether the caller of a group's ``_get_backend`` destroys the group.

    torch 2.4 then asks for the backend of GPUs, shuts that down if it is NCCL's, and
    calls nothing of other groups.
    """
    return caller is not None and caller.f_code.co_name == "_shutdown_backend"


class CpuDevice(c10d.Backend):
    """Stands for the CPU in a group whose methods do the work themselves."""

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name that torch's hooks show."""
        return NAME


def serve_cpus(group: c10d.ProcessGroup) -> None:
    """Tell torch that a group serves CPUs.

    Checkpoints and object collectives look up the group's devices. From torch 2.14 on,
    hooks also look up the backend of each device, which Python can make there.
    """
    try:
        backend = CpuDevice(group.rank(), group.size())
    except TypeError:  # an older torch
        backend = None
    group._register_backend(torch.device("cpu"), group.BackendType.CUSTOM, backend)
    if backend is not None:
        group._set_default_backend(group.BackendType.CUSTOM)
