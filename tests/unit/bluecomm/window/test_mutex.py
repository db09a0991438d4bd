"""Mutexes of windows, interrupted by signals."""

from types import SimpleNamespace

import pytest
import torch

from bluecomm.window import mutex
from bluecomm.window.live import LiveWindow


def test_a_mutex_is_given_back_when_a_signal_ends_the_call(monkeypatch):
    given_back = []

    def lock(owner, limit_s, kept, keep):
        kept[7] = keep
        keep.append(7)
        raise KeyboardInterrupt  # as the signal handler does on return

    def start_request(submit, keep, timeout_s):
        return submit({}, keep)

    native = SimpleNamespace(lock=lock, unlock=lambda *what: given_back.append(what))
    world = SimpleNamespace(start_request=start_request)
    comm = SimpleNamespace(rank=0, world=world)
    window = LiveWindow("x", comm, torch.zeros(1), native)
    monkeypatch.setattr(mutex, "find", lambda *_: window)
    with (
        pytest.raises(KeyboardInterrupt),
        mutex.win_mutex("x", for_self=True, timeout_s=1.0),
    ):
        pass
    assert given_back == [(0, 7)]
