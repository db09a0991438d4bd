"""Finds NCCL, which a program's torch usually brings with it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bluecomm._native import NcclLibrary

_NAME = "libnccl.so.2"


def nccl_library() -> NcclLibrary:
    """Return NCCL: the one that the process has loaded, or that of its environment.

    Raises:
        RuntimeError: There is none, or it is older than 2.14.
    """
    from bluecomm._native import NcclLibrary

    return NcclLibrary(nccl_candidates())


def nccl_candidates() -> list[str]:
    """Return where NCCL may be: in the package ``nvidia.nccl``, or in the system."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:  # there is no package nvidia
        found = None
    folders = () if found is None else found.submodule_search_locations or ()
    paths = [Path(folder) / "lib" / _NAME for folder in folders]
    return [*(str(path) for path in paths if path.exists()), _NAME]
