"""The queue of NCCL's calls belongs to one device, and is made once."""

from __future__ import annotations

import types

import pytest

import bluecomm as bf
from bluecomm.runtime import current_communicator, nccl_calls
from bluecomm.runtime.device_transport import DeviceTransport
from bluecomm.runtime.nccl_calls import NcclCalls


class Queue:
    """A queue that notes how long it was given to end, and whether it runs."""

    closed: float | None = None
    runs = True
    forgotten: int | None = None

    def forget_group(self, id):
        self.forgotten = id

    def suspend(self):
        self.runs = False

    def resume(self):
        self.runs = True

    def close(self, timeout_s):
        self.closed = timeout_s


class Staging:
    """The staging of a device whose queue can be made once."""

    def __init__(self, index):
        self.index = index
        self.queues = [Queue()]

    def make_nccl_queue(self, library, rank, *, awaits_device):
        assert (library.version, rank, awaits_device) == ("2.29.7", 1, True)
        self.meanwhile()
        return self.queues.pop()

    def meanwhile(self):
        """Stand for a signal handler."""


@pytest.fixture
def calls(monkeypatch):
    library = types.SimpleNamespace(version="2.29.7")
    monkeypatch.setattr(nccl_calls, "nccl_library", lambda: library)
    engine = types.SimpleNamespace(watch_failures=lambda _: None)
    return NcclCalls(
        types.SimpleNamespace(
            rank=1,
            engine=engine,
            check_usable=lambda: None,
            device_transport=DeviceTransport("nccl"),
        ),
        awaits_device=True,
    )


def test_tensors_on_another_device_are_an_error_that_names_both(calls):
    queue = calls.queue_of(staging := Staging(0))
    assert calls.queue_of(staging) is queue
    with pytest.raises(
        ValueError,
        match="rank 1 calls NCCL on CUDA device 0, but this tensor is on device 3",
    ):
        calls.queue_of(Staging(3))
    calls.close(2.0)
    assert queue.closed == 2.0


def test_a_world_without_calls_has_nothing_to_stop(calls):
    calls.suspend()
    calls.resume()
    calls.forget(7)
    calls.close(2.0)


def test_the_queue_forgets_a_process_set_that_is_freed(calls, monkeypatch):
    queue = calls.queue_of(Staging(0))
    bf.init()
    try:
        monkeypatch.setattr(current_communicator().world, "nccl_calls", calls)
        freed = bf.ProcessSet([0])
        freed.free()
        assert queue.forgotten == freed.group_id
    finally:
        bf.shutdown()


def test_the_queue_stands_still_while_the_world_is_suspended(calls, monkeypatch):
    queue = calls.queue_of(Staging(0))
    bf.init()
    try:
        monkeypatch.setattr(current_communicator().world, "nccl_calls", calls)
        bf.suspend()
        assert not queue.runs
        bf.resume()
        assert queue.runs
    finally:
        bf.shutdown()


def test_a_signal_handler_may_end_the_world_while_the_queue_is_made(calls):
    staging = Staging(0)
    staging.meanwhile = lambda: calls.close(0.0)
    assert calls.queue_of(staging).closed is None
