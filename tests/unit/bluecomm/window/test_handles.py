"""Waiting for window requests to other ranks."""

from types import SimpleNamespace

import torch

from bluecomm.runtime import failure
from bluecomm.window.live import LiveWindow, WindowHandle


def test_a_wait_goes_on_after_a_suspension_that_is_over():
    completions = [None, None, SimpleNamespace(code=failure.OK, text="", rank=-1)]
    native = SimpleNamespace(wait=lambda ticket, limit_s: completions.pop(0))
    world = SimpleNamespace(rank=0, check_running=lambda *_: None)
    window = LiveWindow("x", SimpleNamespace(world=world), torch.zeros(1), native)
    assert WindowHandle(window, "win_put", "ticket", 1.0).wait()
    assert completions == []
