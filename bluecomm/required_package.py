"""Raises a clear error where an optional package is missing or too old."""

from __future__ import annotations

import importlib


def require_package(name: str, least: str, user: str, note: str = "") -> None:
    """Import a package, and check its version.

    Args:
        name: The package.
        least: Its lowest version that works, such as ``"2.6"``.
        user: The module that needs it.
        note: Text to append to the error.

    Raises:
        ImportError: It cannot be imported, or is older.
    """
    remedy = f"install it: pip install '{name}>={least}'{note}"
    try:
        installed: str = importlib.import_module(name).__version__
    except ImportError as error:
        raise ImportError(
            f"{user} needs the package {name}, which cannot be imported ({error}); "
            f"{remedy}"
        ) from error
    if _numbers(installed) < _numbers(least):
        raise ImportError(f"{user} cannot use {name} {installed}; {remedy}")


def _numbers(version: str) -> tuple[int, ...]:
    """Return major and minor version."""
    return tuple(map(int, version.split(".")[:2]))
