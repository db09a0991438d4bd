"""Marks tests that need FSDP2 under its present name."""

from __future__ import annotations

import os

import pytest
import torch

# CI has a newer torch. If it gets an older one, these tests fail there.
needs_fsdp2 = pytest.mark.skipif(
    torch.__version__ < (2, 6) and not os.environ.get("CI"),
    reason="FSDP2 needs torch 2.6",
)
