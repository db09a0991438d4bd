"""SIGTERM lets ``finally`` blocks run to their end."""

from __future__ import annotations

import signal

import pytest

from bluecomm.bench.ending import exit_at_sigterm


def test_a_program_cleans_up_before_it_ends() -> None:
    earlier = signal.getsignal(signal.SIGTERM)
    done = []
    try:
        exit_at_sigterm()
        with pytest.raises(SystemExit, match=r"^143$"):
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                done.append("cleaned up")
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert done == ["cleaned up"]
