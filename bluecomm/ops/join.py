"""Join: a rank without data takes part in the operations of the others."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import torch

from bluecomm.ops.barrier import start_barrier
from bluecomm.ops.joined_calls import JoinedCalls
from bluecomm.ops.refusal import Operation
from bluecomm.ops.start import start_gather
from bluecomm.runtime import Communicator, current_communicator
from bluecomm.runtime.chained_handle import chains_under_way
from bluecomm.runtime.handle import ends_within

_NAME = "join"


def answer_until_all_join() -> int:
    """Take part in the operations of the ranks that have not joined, until all have.

    The engine, or this function for calls through NCCL, answers each allreduce and
    reducescatter with the neutral value of its reduction, and each barrier. Other
    operations fail on the ranks that call them.

    Returns:
        The last rank to join. It has answered the fewest operations; of several such
        ranks it has waited for the shortest time.

    Raises:
        NotInitializedError: ``init`` has not been called.
        ValueError: The job survives losses.
        PeerLostError: A rank is lost.
        MismatchError: Another rank refuses its call. As after a timeout, the engine
            goes on answering until this function has been called again. Calls through
            NCCL wait for that. The failure of an earlier operation, which had ended
            on this rank, is raised when all ranks have joined.
        CommunicationTimeout: Some ranks did not join in time, although they are idle.
    """
    comm = current_communicator()
    world = comm.world
    refuse_join(comm)
    if comm.size == 1:
        return comm.rank
    for one in list(world.communicators.values()):
        if one.included and one.has_subgroups and one.machine_size > 1:
            _ = one.machine_group  # ranks that have not joined may call its operations
    begin = time.monotonic()
    chains = chains_under_way()
    world.engine.join()
    calls = JoinedCalls(world)
    for chain in chains:
        calls.await_end(chain.ends_within)
    for request in world.started():
        calls.await_end(functools.partial(world.ends_within, request))
    barrier = start_barrier(comm, _NAME)
    calls.await_end(functools.partial(ends_within, barrier))
    calls.wait_for_own()
    waited_us = int((time.monotonic() - begin) * 1e6)
    answers, sequence = world.engine.join_report()
    mine = torch.tensor([[answers, waited_us, sequence]], device="cpu")
    gathered = mine.new_empty(comm.size, mine.shape[1])
    gather = start_gather(
        comm, "allgather", mine, name=f"{_NAME}.last", timeout_s=None, out=gathered
    )
    calls.await_end(functools.partial(ends_within, gather))
    reports: list[list[int]] = gathered.tolist()
    # The gather itself has used one number more.
    world.leave_join(max(sequence for _, _, sequence in reports) + 1)
    calls.raise_late()
    return min(range(comm.size), key=lambda rank: reports[rank][:2])


def refused_join(comm: Communicator) -> Iterator[Operation]:
    """Describe a refused call of ``answer_until_all_join``."""
    # In a job that survives losses no rank gets as far as the barrier.
    if not comm.world.members.survives_losses:
        yield "barrier", _NAME, None


def refuse_join(comm: Communicator) -> None:
    """Raise if ranks cannot join.

    Raises:
        ValueError: The job survives losses.
    """
    if comm.world.members.survives_losses:
        raise ValueError(
            "join: ranks without data cannot be used with bfrun --on-failure continue, "
            "because a round that a loss breaks off is repeated with the inputs of all "
            "ranks that are left; give all ranks the same number of batches"
        )
