"""Waiting for handles, in BlueFog's and Horovod's words."""

from __future__ import annotations

from bluecomm.runtime import Handle
from bluecomm.runtime.handle import Result

__all__ = ["poll", "synchronize", "wait"]


def poll(handle: Handle[Result]) -> bool:
    """Return whether ``wait(handle)`` would return (or raise) at once.

    Raises:
        ValueError: The handle has been waited for already.
    """
    return _checked(handle).done()


def wait(handle: Handle[Result], timeout_s: float | None = None) -> Result:
    """Return the result of a nonblocking operation, as soon as it is there.

    Args:
        handle: What a ``*_nonblocking`` function returned. It is waited for once.
        timeout_s: Seconds to wait at most; after that the handle can be waited for
            again. Default: the operation's own deadline.

    Returns:
        What the blocking form of the operation returns.

    Raises:
        ValueError: The handle has been waited for already.
        TypeError: It is no handle.
        BluecommError: As the blocking form of the operation.
    """
    return _checked(handle).wait(timeout_s)


def synchronize(handle: Handle[Result], timeout_s: float | None = None) -> Result:
    """Return the result of a nonblocking operation; the same as ``wait``."""
    return wait(handle, timeout_s)


def _checked(handle: Handle[Result]) -> Handle[Result]:
    if not isinstance(handle, Handle):
        raise TypeError(
            "expected the handle that a nonblocking operation returned, got "
            f"{handle!r:.80}"
        )
    return handle
