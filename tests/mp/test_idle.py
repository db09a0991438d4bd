"""An idle or waiting rank leaves its core to others.

The tests measure the CPU time of the whole process, including the progress thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

import bluecomm as bf
from tests.support.ranks import run_ranks

_SPAN_S = 2.0
# A thread that polls uses all of its time. Calls and wakeups use 0.3 % of it on a fast
# machine, and several times as much on a slow one.
_MOST_CPU = 0.05


def _share_of_a_core(wait: Callable[[], object]) -> float:
    """Return the CPU time of this process in each second of ``wait``.

    A span may be much longer than ``_SPAN_S`` on a busy machine.
    """
    begin_s, before_s = time.monotonic(), time.process_time()
    wait()
    return (time.process_time() - before_s) / (time.monotonic() - begin_s)


def _idle() -> float:
    bf.allreduce(torch.ones(1000))
    bf.barrier()
    used = _share_of_a_core(lambda: time.sleep(_SPAN_S))
    bf.barrier()
    return used


def _await_late_peer() -> float:
    def wait() -> None:
        if bf.rank() == 1:
            time.sleep(_SPAN_S)
        bf.allreduce(torch.ones(1000))

    bf.barrier()
    return _share_of_a_core(wait)


def _await_late_peer_nonblocking() -> float:
    def wait() -> None:
        if bf.rank() == 1:
            time.sleep(_SPAN_S)
        handle = bf.allreduce_nonblocking(torch.ones(100_000))
        time.sleep(_SPAN_S / 2)
        bf.wait(handle)

    bf.barrier()
    return _share_of_a_core(wait)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    "body", [_idle, _await_late_peer, _await_late_peer_nonblocking]
)
def test_waiting_takes_no_core(body, transport):
    used = run_ranks(2, body, transport=transport)
    assert max(used) <= _MOST_CPU
