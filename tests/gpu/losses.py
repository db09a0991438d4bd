"""The loss of a rank while calls are on their way; a body of ranks."""

from __future__ import annotations

import os
import signal
import threading
import time

import torch

import bluecomm as bf
from bluecomm.runtime import current_communicator
from tests.support.deadlines import wait_until
from tests.support.fakegpu.faults import has_ended

LOST = 1
# Rank 1 ends in one of the calls behind these.
CALLS_BEFORE = 3


def lose_a_rank(count: int, timeout_s: float) -> tuple[str, float]:
    """Return the error of the others, and the seconds from the loss to it.

    Args:
        count: Number of elements of a call.
        timeout_s: Deadline of each call.
    """
    x = torch.ones(count)
    for _ in range(CALLS_BEFORE):
        bf.allreduce(x)
    bf.barrier()
    if bf.rank() == LOST:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            bf.allreduce(x)
    world = current_communicator().world
    lost = world.peers[LOST].pid
    ended = []

    def report() -> None:
        wait_until(lambda: has_ended(lost), "rank 1 has not ended")
        ended.append(time.monotonic())
        world.engine.peer_lost(LOST, "rank 1 was killed")  # as bfrun reports it

    reporter = threading.Thread(target=report)
    reporter.start()
    while True:
        is_known = not reporter.is_alive()
        try:
            bf.allreduce(x, timeout_s=timeout_s)
        except bf.BluecommError as raised:
            error = f"{type(raised).__name__}: {raised}"
            # NCCL may fail before anybody has said why.
            if is_known or isinstance(raised, bf.PeerLostError):
                break
    reporter.join()
    return error, time.monotonic() - ended[0]
