"""Finds the step of an optimizer below its hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def unhooked(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return the step of an optimizer's class without the calls of step hooks.

    Args:
        step: A bound method of an optimizer.
    """
    function = step.__func__  # type: ignore[attr-defined]
    if getattr(function, "hooked", False):
        function = function.__wrapped__
    method: Callable[..., Any] = function.__get__(step.__self__)  # type: ignore[attr-defined]
    return method
