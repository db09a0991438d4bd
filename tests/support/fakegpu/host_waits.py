"""Notes for what the host waits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from bluecomm.device import staging
from bluecomm.device.point import wait_on_host


@contextlib.contextmanager
def waits_noted() -> Iterator[list[str]]:
    """Note the operations for whose copies from the device the host waits."""
    waits = []

    def note(gate: Any, operation: str, timeout_s: float) -> None:
        if gate.poll() is None:
            waits.append(operation)
        wait_on_host(gate, operation, timeout_s)

    with mock.patch.object(staging, "wait_on_host", note):
        yield waits
