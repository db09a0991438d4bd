import pytest

from bfrun import silence as silence_module
from bfrun.silence import SilenceTimer
from tests.support.stand_in import replace_in


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    replace_in(monkeypatch, silence_module, "time", monotonic=lambda: now[0])
    return now


def test_silence_expires_and_is_broken(clock):
    silence = SilenceTimer(4.0)
    for _ in range(7):
        clock[0] += 0.5
        assert not silence.expired()
    silence.heard()
    for _ in range(7):
        clock[0] += 0.5
        assert not silence.expired()
    clock[0] += 0.5
    assert silence.expired()


def test_a_watcher_that_slept_blames_nobody(clock):
    silence = SilenceTimer(4.0)
    clock[0] += 3600
    assert not silence.expired()


def test_a_pause_does_not_count(clock):
    silence = SilenceTimer(2.0)
    silence.pause(True)
    assert silence.paused
    for _ in range(10):
        clock[0] += 1
        assert not silence.expired()
    silence.pause(False)
    clock[0] += 1
    assert not silence.expired()
    clock[0] += 1
    assert silence.expired()
