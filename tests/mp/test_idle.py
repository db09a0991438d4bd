"""An idle or waiting rank leaves its core to others.

The tests measure the CPU time of the whole process, including the progress thread.
"""

from __future__ import annotations

import time

import pytest
import torch

import bluecomm as bf
from tests.support.ranks import run_ranks

_SPAN_S = 2.0
# A thread that polls uses all of the span. Calls and wakeups use 0.3 % of it on a fast
# machine, and several times as much on a slow one.
_MOST_CPU_S = 0.05 * _SPAN_S


def _idle() -> float:
    bf.allreduce(torch.ones(1000))
    bf.barrier()
    before = time.process_time()
    time.sleep(_SPAN_S)
    used = time.process_time() - before
    bf.barrier()
    return used


def _await_late_peer() -> float:
    bf.barrier()
    before = time.process_time()
    if bf.rank() == 1:
        time.sleep(_SPAN_S)
    bf.allreduce(torch.ones(1000))
    return time.process_time() - before


def _await_late_peer_nonblocking() -> float:
    bf.barrier()
    before = time.process_time()
    if bf.rank() == 1:
        time.sleep(_SPAN_S)
    handle = bf.allreduce_nonblocking(torch.ones(100_000))
    time.sleep(_SPAN_S / 2)
    bf.wait(handle)
    return time.process_time() - before


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    "body", [_idle, _await_late_peer, _await_late_peer_nonblocking]
)
def test_waiting_takes_no_core(body, transport):
    used = run_ranks(2, body, transport=transport)
    assert max(used) <= _MOST_CPU_S
