"""The ``PYTHONPATH`` of the processes of the tests."""

from __future__ import annotations

import os
from pathlib import Path

# It has a ``sitecustomize``, which Python imports when it starts.
STARTUP = Path(__file__).parent / "startup"


def python_path(*folders: str | Path) -> str:
    """Return a ``PYTHONPATH`` with these folders, and what all processes need."""
    return os.pathsep.join(map(str, (*folders, STARTUP)))
