"""Bridges differences between the versions of torch that the backend supports."""

from __future__ import annotations

from typing import Any


def is_async(options: Any) -> bool:
    """Return whether the caller of a collective wants a work object.

    Some options of torch 2.4 lack the attribute; torch then waits for the work itself.
    """
    return getattr(options, "asyncOp", True)
