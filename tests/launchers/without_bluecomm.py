"""Runs ``programs.py``, but in the first start rank 1 has no bluecomm."""

from __future__ import annotations

import os
import runpy
import sys

from tests.launchers.support import PROGRAM

FIRST_RANK_1 = {"TORCHELASTIC_RESTART_COUNT": "0", "RANK": "1"}

if all(os.environ[name] == value for name, value in FIRST_RANK_1.items()):
    sys.modules["bluecomm"] = None  # type: ignore[assignment]
runpy.run_module(PROGRAM, run_name="__main__")
