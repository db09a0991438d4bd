"""Points in the order of a device's stream, and how the host waits for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from bluecomm.errors import BluecommError, CommunicationTimeout

if TYPE_CHECKING:
    from bluecomm._native import Completion

# How often a thread looks whether a copy has ended.
_POLL_S = 0.0001


class Point(Protocol):
    """A point in the order of a device's stream."""

    def poll(self) -> Completion | None:
        """Return the outcome of all work before the point, once it has ended."""


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
