"""Replaces attributes of a module as one other module sees them.

A test that replaced ``time.monotonic`` itself would replace it for all threads of the
process, and fail the ones that other tests have left.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


class StandIn:
    """Has the attributes of a module, of which some are replaced.

    Args:
        real: The module.
        replaced: Attributes of the stand-in.
    """

    def __init__(self, real: Any, **replaced: Any) -> None:
        self._real = real
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def replace_in(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, **replaced: Any
) -> None:
    """Replace attributes of a module that another one imports, for that one only.

    ``replace_in(monkeypatch, silence, "time", monotonic=clock)`` gives ``silence``
    another clock.

    Args:
        monkeypatch: Undoes it.
        module: The module under test.
        name: Name of the other module in it.
        replaced: The attributes.
    """
    monkeypatch.setattr(module, name, StandIn(getattr(module, name), **replaced))
