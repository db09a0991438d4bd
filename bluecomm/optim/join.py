"""``join``, for ranks that run out of data before others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bluecomm.ops.join import answer_until_all_join, refused_join
from bluecomm.ops.refusal import Operation
from bluecomm.ops.unfit_calls import refuse_unfit_calls
from bluecomm.optim.ownership import ParameterOwner, live_owners
from bluecomm.runtime import Communicator, current_communicator

__all__ = ["join"]


def _joining_owners() -> list[ParameterOwner]:
    """Return the optimizers that join by themselves; none if the engine does.

    Optimizers of an ended world, which exist until they are collected, do not join.
    """
    owners = [owner for owner in live_owners() if not owner.comm.world.is_closed]
    return [] if all(owner.joins_in_engine for owner in owners) else owners


def _communicator(_: Mapping[str, Any]) -> Communicator:
    owners = _joining_owners()
    return owners[0].comm if owners else current_communicator()


def _refused(comm: Communicator, _: Mapping[str, Any]) -> Iterator[Operation]:
    owners = _joining_owners()
    return owners[0].refused_join() if owners else refused_join(comm)


@refuse_unfit_calls(_refused, _communicator)
def join(device: int = -1) -> int:
    """Take part without data until all ranks have joined.

    Collective. A rank that has joined contributes zeros to each ``allreduce`` and
    ``reducescatter`` of the others (or what does not change a minimum, maximum or
    product), and takes part in each ``barrier``; an average still divides by the number
    of all ranks. Other operations with it are an error on the ranks that call them.
    Operations that a rank has started before it joins end first.

    Distributed optimizers go on without the ranks that have joined. If one of this
    process needs more than reductions (its algorithm averages parameters, or sends
    sparse gradients), its ``join`` method is called instead, and only its rounds go on.

    Args:
        device: For Horovod's scripts. It is ignored; zeros for calls through NCCL are
            on the GPU of the calls before, or on ``local_device()``.

    Returns:
        The last rank to join, the same on all ranks. If several join at about the same
        time, one of them.

    Raises:
        NotInitializedError: ``init`` has not been called.
        ValueError: A distributed optimizer does not support ``join``.
        MismatchError: Another rank refuses its call. This rank still counts as joined,
            so call the function again.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not join in time, although they are idle.
    """
    del device
    owners = _joining_owners()
    if not owners:
        return answer_until_all_join()
    return [owner.join() for owner in owners][-1]
