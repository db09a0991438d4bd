"""Calls through NCCL: their memory, what NCCL and the engine see, and refusals."""

from __future__ import annotations

import gc
import types
import weakref

import pytest
import torch

from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.errors import BluecommError, PeerLostError
from bluecomm.ops.nccl_call import make_nccl_call
from bluecomm.ops.nccl_collective import Collective
from bluecomm.ops.refusal import is_marked
from bluecomm.runtime.failure import INTERNAL, PEER_LOST
from bluecomm.runtime.requests import Requests


class Staging(CudaStaging):
    """The staging of a device that keeps nothing."""

    def __init__(self):
        pass

    def current_stream(self):
        return 7

    def keep(self, use, memory):
        pass


class Ticket:
    """A call that ends at once; notes whether it was withdrawn."""

    is_withdrawn = False

    def follow(self, stream):
        return None

    def withdraw(self):
        self.is_withdrawn = True


class Queue:
    """A queue whose calls end at once."""

    def __init__(self, failed=None):
        self.failed = failed
        self.calls = []

    def failure_of(self, group):
        return self.failed

    def make_call(self, **call):
        self.calls.append(call)
        return Ticket()

    def enter(self, draft, group):
        return Ticket()


class Comm:
    """All ranks; notes what this one refuses, and the bytes of its calls."""

    def __init__(self, queue):
        self.refused, self.counted = [], []
        self.is_repeated = False
        self.group_id, self.rank, self.size, self.ranks = 5, 0, 2, (0, 1)
        self.world = types.SimpleNamespace(
            rank=0,
            config=types.SimpleNamespace(operation_timeout_s=1.0),
            nccl_calls=types.SimpleNamespace(
                queue_of=lambda staging: queue,
                count=lambda group_id, nbytes: self.counted.append(nbytes),
            ),
        )

    def name_for(self, kind, name):
        return name or f"{kind}.0"

    def refuse(self, kind, name, reason, parameters):
        self.refused.append((kind, name, reason))


def make(comm, kind="allreduce"):
    result = torch.zeros(4)
    given = types.SimpleNamespace(op="sum", root=0, prescale=1.0, postscale=1.0)
    call = make_nccl_call(
        comm,
        Staging(),
        kind,
        None,
        "float32",
        (4,),
        Collective(kind, "float32", torch.ones(4), result, given),
        lambda _: result,
        None,
    )
    return call, weakref.ref(result)


def test_memory_is_freed_without_the_garbage_collector():
    gc.disable()
    try:
        comm = Comm(Queue())
        call, result = make(comm)
        call.ticket = call.tickets.make(comm)
        assert call.finish(1) is result()
        del call
        assert result() is None
    finally:
        gc.enable()


def test_a_broadcast_moves_bytes_but_is_matched_by_its_type():
    queue = Queue()
    comm = Comm(queue)
    call, _ = make(comm, "broadcast")
    assert call.dtype == "float32"
    assert comm.counted == [16]
    assert (queue.calls[0]["dtype"], queue.calls[0]["count"]) == ("uint8", 16)


@pytest.mark.parametrize(
    ("code", "rank", "error"),
    [(INTERNAL, -1, BluecommError), (PEER_LOST, -1, PeerLostError)],
)
def test_other_ranks_learn_why_a_call_is_not_made(code, rank, error):
    comm = Comm(Queue(types.SimpleNamespace(code=code, text="aborted", rank=rank)))
    with pytest.raises(error) as caught:
        make(comm)
    assert is_marked(caught.value)
    assert comm.refused == [
        ("allreduce", "allreduce.0", (f"{error.__name__}: {caught.value}", code, -1))
    ]


def test_the_engine_tells_others_of_a_lost_rank():
    lost = types.SimpleNamespace(code=PEER_LOST, text="rank 1 was killed", rank=1)
    comm = Comm(Queue(lost))
    with pytest.raises(PeerLostError, match="rank 1 was killed"):
        make(comm)
    assert comm.refused == []


def test_the_ticket_of_a_call_that_the_engine_has_not_got_is_withdrawn():
    """As after a KeyboardInterrupt; otherwise its tensors would be kept for ever."""
    comm = Comm(Queue())
    call, _ = make(comm)
    call.enter(comm)
    call.name = "x"
    requests = Requests(types.SimpleNamespace(submit=interrupt), comm.world.config, 0)
    with pytest.raises(KeyboardInterrupt):
        requests.start(call)
    assert call.ticket.is_withdrawn


def interrupt(call, kept):
    raise KeyboardInterrupt
