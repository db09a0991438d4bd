"""Waiting for what must happen, however little time a machine has for it.

A machine that runs two test jobs on two cores may take thirty times as long as a quiet
one. A test waits for the event itself; how soon things happen is for tests with clocks
of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

# Only what never happens takes so long. What a test starts and nobody should wait for
# lives longer.
PATIENCE_S = 120.0


def until(
    done: Callable[[], object],
    what: Callable[[], str] | str,
    limit_s: float = PATIENCE_S,
    look_s: float = 0.02,
) -> float:
    """Look again and again until ``done()``; return the seconds that it took.

    Args:
        done: Looks whether it has happened.
        what: What failed if it never does.
        limit_s: When to fail.
        look_s: Between two looks.
    """
    start = time.monotonic()
    while not done():
        if time.monotonic() - start > limit_s:
            text = what if isinstance(what, str) else what()
            pytest.fail(f"{text} after {limit_s:g} s")
        time.sleep(look_s)
    return time.monotonic() - start


def say(folder: Path, word: str) -> None:
    """Tell other processes of a test that something has happened."""
    (folder / word).touch()


def hear(folder: Path, word: str) -> None:
    """Wait until some process of this test has said ``word``."""
    until((folder / word).exists, f"nobody said '{word}'", look_s=0.002)
