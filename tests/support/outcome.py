"""What a call came to on a rank, in a form that the test's process can look at."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a call or its error, and how long it took."""

    result: Any
    error: Exception | None
    seconds: float

    @property
    def text(self) -> str:
        """Text of the error, empty without one."""
        return "" if self.error is None else str(self.error)


def outcome_of(call: Callable[[], Any]) -> Outcome:
    """Return what ``call`` returns or raises."""
    start = time.monotonic()
    try:
        result, error = call(), None
    except Exception as raised:
        result, error = None, raised
    return Outcome(result, error, time.monotonic() - start)
