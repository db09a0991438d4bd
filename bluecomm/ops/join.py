"""Join: a rank without data takes part in the operations of the others."""

from __future__ import annotations

import time

import torch

from bluecomm.ops.allgather import allgather_by_rank
from bluecomm.ops.barrier import named_barrier
from bluecomm.runtime import current_communicator


def answer_until_all_join() -> int:
    """Take part in the operations of the ranks that have not joined, until all have.

    The engine answers each allreduce and reducescatter with the neutral value of its
    reduction, and each barrier. Other operations fail on the ranks that call them.

    Returns:
        The last rank to join. It has answered the fewest operations; of several such
        ranks it has waited for the shortest time.

    Raises:
        NotInitializedError: ``init`` has not been called.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not join in time, although they are idle.
    """
    comm = current_communicator()
    world = comm.world
    if comm.size == 1:
        return comm.rank
    begin = time.monotonic()
    world.engine.join()
    world.wait_for_started()
    named_barrier(comm, "join")
    waited_us = int((time.monotonic() - begin) * 1e6)
    answers, sequence = world.engine.join_report()
    mine = torch.tensor([[answers, waited_us, sequence]])
    reports = [
        tuple(report[0].tolist())
        for report in allgather_by_rank(comm, mine, "join.last")
    ]
    # The gather itself has used one number more.
    world.leave_join(max(sequence for _, _, sequence in reports) + 1)
    return min(range(comm.size), key=lambda rank: reports[rank][:2])
