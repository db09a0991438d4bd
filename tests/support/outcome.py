"""The outcome of a call on a rank, in a form that can be sent to the test's process."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a call or its error, and its duration."""

    result: Any
    error: Exception | None
    seconds: float

    @property
    def text(self) -> str:
        """Text of the error, or empty."""
        return "" if self.error is None else str(self.error)


def outcome_of(call: Callable[[], Any]) -> Outcome:
    """Return the result or the error of ``call``."""
    start = time.monotonic()
    try:
        result, error = call(), None
    except Exception as raised:
        # A traceback would keep the objects of the call, such as optimizers.
        result, error = None, raised.with_traceback(None)
    return Outcome(result, error, time.monotonic() - start)
