"""SIGTERM lets ``finally`` blocks run to their end."""

from __future__ import annotations

import signal

import pytest

from bluecomm.bench.ending import exit_at_sigterm


def test_a_program_cleans_up_before_it_ends() -> None:
    earlier = signal.getsignal(signal.SIGTERM)
    done = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            done.append("cleaned up")

    try:
        exit_at_sigterm()
        with pytest.raises(SystemExit, match=r"^143$"):
            work()
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert done == ["cleaned up"]
