"""Waiting for requests to windows, under BlueFog's names."""

from __future__ import annotations

from bluecomm.ops.handles import poll, wait
from bluecomm.runtime import Handle

__all__ = ["win_poll", "win_wait"]


def win_wait(handle: Handle[bool], timeout_s: float | None = None) -> bool:
    """Return ``True`` once a put, accumulate or get has its effect.

    Args:
        handle: The handle that the nonblocking function returned. A handle is waited
            for once.
        timeout_s: Seconds to wait at most; after that the handle can be waited for
            again. Default: the request's deadline.

    Raises:
        ValueError: The handle has been waited for already.
        TypeError: The argument is not a handle.
        BluecommError: See the blocking function.
    """
    return wait(handle, timeout_s)


def win_poll(handle: Handle[bool]) -> bool:
    """Return whether ``win_wait(handle)`` would return (or raise) at once.

    Raises:
        ValueError: The handle has been waited for already.
        TypeError: The argument is not a handle.
    """
    return poll(handle)
