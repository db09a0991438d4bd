"""bfrun starts, watches and ends the ranks of a distributed job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfrun.function import run

__all__ = ["__version__", "run"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the launcher only on first use, because ranks import this package too."""
    if name == "run":
        from bfrun.function import run

        return run
    raise AttributeError(f"module 'bfrun' has no attribute '{name}'")
