"""Requests about windows, and what their handles do."""

from types import SimpleNamespace

import pytest
import torch

from bluecomm.runtime.handle import Handle
from bluecomm.window import put
from bluecomm.window.live import LiveWindow


class FakeWorld:
    def __init__(self, number):
        self.number = number
        self.forgotten = []

    def start_request(self, submit, keep, timeout_s):
        self.started = (submit, keep, timeout_s)
        return self.number

    def forget(self, number):
        self.forgotten.append(number)


def start(world, finish=lambda _: True):
    window = LiveWindow("x", SimpleNamespace(world=world), torch.zeros(1), None)
    return window.start("win_put", len, ["source"], None, finish=finish)


def test_a_call_that_has_ended_is_only_finished():
    world = FakeWorld(0)
    finished = []
    handle = start(world, lambda number: not finished.append(number))
    assert isinstance(handle, Handle)
    assert world.started == (len, ["source"], None)
    assert handle.done()
    assert finished == []
    assert handle.wait()
    assert finished == [0]
    with pytest.raises(ValueError, match="win_put 'x' has been waited for already"):
        handle.wait()
    del handle
    assert world.forgotten == []


def test_a_dropped_request_is_forgotten():
    world = FakeWorld(7)
    assert repr(start(world)) == "<Handle of win_put 'x', outstanding>"
    assert world.forgotten == [7]


def test_a_put_keeps_its_memory_known(monkeypatch):
    world = FakeWorld(7)
    world.config = SimpleNamespace(operation_timeout_s=1.0)
    comm = SimpleNamespace(
        world=world, topology=None, win_ops_carry_p=False, rank=0, size=2
    )
    tensor = torch.zeros(8)
    window = LiveWindow("x", comm, tensor, None)
    monkeypatch.setattr(put, "find", lambda *_: window)
    handle = put.win_put_nonblocking(tensor, "x", dst_weights={})
    _, keep, _ = world.started
    assert keep.uses(tensor[5:].data_ptr(), 4)
    assert not keep.uses(tensor.data_ptr() + tensor.nbytes, 4)
    del handle
