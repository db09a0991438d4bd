"""Waits for events, with a deadline that only a defect exceeds.

A machine that runs two test jobs on two cores may be thirty times slower than an idle
one. So tests wait for the event itself and never assert how soon it happens; tests of
durations inject a clock. The longest event of most tests is the start of some ranks,
which import torch. It takes 1.7 CPU seconds each on a fast machine, three times as long
on a slow one, and ten times as long as that if others use nine tenths of the cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

# No event of a correct program takes this long.
DEADLINE_S = 240.0
# Nor does a job, which is many events: each process imports torch, and some train for a
# while. Processes that a test must not wait for live longer, for 1000 s at least.
JOB_S = 2 * DEADLINE_S
# Nor do some thousand steps, in each of which all ranks need a core in turn.
STEPPING_S = 3 * JOB_S


def wait_until(
    done: Callable[[], object],
    what: Callable[[], str] | str,
    limit_s: float = DEADLINE_S,
    look_s: float = 0.02,
) -> float:
    """Poll ``done`` until it is true; fail the test at the deadline.

    Args:
        done: Returns whether the event has happened.
        what: The failure to report at the deadline.
        limit_s: The deadline, in seconds from now.
        look_s: Seconds between two polls.

    Returns:
        The seconds it took.
    """
    start = time.monotonic()
    while not done():
        if time.monotonic() - start > limit_s:
            text = what if isinstance(what, str) else what()
            raise AssertionError(f"{text} after {limit_s:g} s")
        time.sleep(look_s)
    return time.monotonic() - start


def say(folder: Path, word: str) -> None:
    """Tell other processes of a test that something has happened."""
    (folder / word).touch()


def hear(folder: Path, word: str) -> None:
    """Wait until a process of this test has announced ``word``."""
    wait_until((folder / word).exists, f"nobody said '{word}'", look_s=0.002)
