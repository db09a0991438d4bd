"""Functions that wait for handles, with the names of BlueFog and Horovod."""

from __future__ import annotations

from bluecomm.runtime import Handle
from bluecomm.runtime.handle import FinishedHandle, RequestHandle, Result

__all__ = ["poll", "synchronize", "wait"]

# Checked first, because isinstance() is slow for an abstract class.
_USUAL = frozenset({FinishedHandle, RequestHandle})


def poll(handle: Handle[Result]) -> bool:
    """Return whether ``wait(handle)`` would return (or raise) at once.

    Raises:
        ValueError: The handle has been waited for already.
    """
    return _checked(handle).done()


def wait(handle: Handle[Result], timeout_s: float | None = None) -> Result:
    """Wait for a nonblocking operation and return its result.

    Args:
        handle: Handle that a ``*_nonblocking`` function returned, not waited for yet.
        timeout_s: Seconds to wait at most; after that the handle can be waited for
            again. Default: the operation's own deadline.

    Returns:
        The value that the blocking form of the operation returns.

    Raises:
        ValueError: The handle has been waited for already.
        TypeError: ``handle`` is not a handle.
        BluecommError: As in the blocking form of the operation.
    """
    return _checked(handle).wait(timeout_s)


def synchronize(handle: Handle[Result], timeout_s: float | None = None) -> Result:
    """Return the result of a nonblocking operation; the same as ``wait``."""
    return wait(handle, timeout_s)


def _checked(handle: Handle[Result]) -> Handle[Result]:
    if type(handle) not in _USUAL and not isinstance(handle, Handle):
        raise TypeError(
            "expected the handle that a nonblocking operation returned, got "
            f"{handle!r:.80}"
        )
    return handle
