"""Compiles functions for CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that compiles a function now, not at its first call.

    The function runs without the GIL. Numba could keep the machine code on disk, but
    would not notice changes of the functions that are compiled into it.

    Args:
        signature: Types of the arguments, as Numba writes them.
    """
    jit: Callable[..., Any] = numba.njit(signature, nogil=True)
    return jit
