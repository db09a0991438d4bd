"""The error that a call raises, as a rank can return it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def error_of(call: Any) -> tuple[str, str]:
    """Return class and text of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def error_text(call: Callable[[], object]) -> str:
    """Return class and text of the error that a call raises, or ``"no error"``."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
