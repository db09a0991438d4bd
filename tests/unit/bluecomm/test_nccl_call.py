"""Calls through NCCL: their memory, and what NCCL and the engine see."""

from __future__ import annotations

import gc
import types
import weakref

import torch

from bluecomm.device.staging import CudaStaging
from bluecomm.ops.nccl_call import make_nccl_call


class Staging(CudaStaging):
    """The staging of a device that keeps nothing."""

    def __init__(self):
        pass

    def current_stream(self):
        return 7

    def keep(self, use, memory):
        pass


class Queue:
    """A queue whose calls end at once."""

    def __init__(self):
        self.calls = []

    def failure(self):
        return None

    def make_call(self, **call):
        self.calls.append(call)
        return types.SimpleNamespace(follow=lambda stream: None)


class Comm:
    """All ranks."""

    def __init__(self, queue):
        self.world = types.SimpleNamespace(
            rank=0,
            config=types.SimpleNamespace(operation_timeout_s=1.0),
            nccl_calls=types.SimpleNamespace(queue_of=lambda staging: queue),
        )


def make(comm, kind="allreduce"):
    result = torch.zeros(4)
    call = make_nccl_call(
        comm,
        Staging(),
        kind,
        None,
        "float32",
        torch.ones(4),
        result,
        lambda _: result,
        types.SimpleNamespace(op="sum", root=0),
        None,
    )
    return call, weakref.ref(result)


def test_memory_is_freed_without_the_garbage_collector():
    gc.disable()
    try:
        call, result = make(Comm(Queue()))
        assert call.finish(1) is result()
        del call
        assert result() is None
    finally:
        gc.enable()


def test_a_broadcast_moves_bytes_but_is_matched_by_its_type():
    queue = Queue()
    call, _ = make(Comm(queue), "broadcast")
    assert call.dtype == "float32"
    assert (queue.calls[0]["dtype"], queue.calls[0]["count"]) == ("uint8", 16)
