"""Compiles functions for CPUs, once per machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that compiles a function now, not at its first call.

    The machine code is kept on disk if a folder for it can be written. The function
    runs without the GIL.

    Args:
        signature: Types of the arguments, as Numba writes them.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:  # no folder for the cache
            return numba.njit(signature, nogil=True)(function)

    return decorate
