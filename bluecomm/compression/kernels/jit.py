"""Compiles functions for CPUs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numba

from bluecomm.compression.kernels.disk_cache import cache_folder, cached_in

_folder = functools.cache(cache_folder)


def compiled(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that compiles a function now, not at its first call.

    The function runs without the GIL. A division by zero gives an infinity or a NaN, so
    no bytes to decode raise an error there. The machine code is kept on disk if it can
    be: see ``disk_cache``.

    Args:
        signature: Types of the arguments, as Numba writes them.
    """

    def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
        folder = _folder()
        if folder is not None:
            # A full disk or a damaged file must not end a training, and can cause any
            # error. A defect of the function shows below.
            with contextlib.suppress(Exception), cached_in(folder):
                return _compile(function, signature, cache=True)
        return _compile(function, signature, cache=False)

    return compile_function


def _compile(
    function: Callable[..., Any], signature: str, *, cache: bool
) -> Callable[..., Any]:
    compile_it = numba.njit(signature, nogil=True, cache=cache, error_model="numpy")
    compiled_function: Callable[..., Any] = compile_it(function)
    return compiled_function
