"""Broadcast and allgather of Python objects that can be pickled.

Unpickling runs code that the sender chose, so a rank must trust the others. The ranks
of one job do.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

from bluecomm.errors import BluecommError
from bluecomm.ops.allgather import allgather_by_rank
from bluecomm.ops.broadcast import broadcast_
from bluecomm.ops.refusal import refuse, refusing
from bluecomm.ops.unfit_calls import first_named, refuse_unfit_calls
from bluecomm.runtime import Communicator, current_communicator

__all__ = ["allgather_object", "broadcast_object"]

# Kinds of the operations of each function, and what follows its name in theirs.
OF_BROADCAST = (("broadcast", ".length"), ("broadcast", ".data"))
OF_ALLGATHER = (("allgather", ""),)


@refuse_unfit_calls(first_named("broadcast_object", *OF_BROADCAST))
def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Return the root's ``obj`` on every rank.

    Args:
        obj: Object that can be pickled. It is ignored on the other ranks.
        root_rank: Rank whose object all ranks get. It must be the same on all ranks.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds after which each of the operations that it consists of
            fails. Default: the configured deadline.

    Returns:
        ``obj`` itself on the root, a copy on the other ranks.

    Raises:
        ValueError: ``root_rank`` is not a member of the process set.
        PicklingError: ``obj`` cannot be pickled (on the root).
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    comm = current_communicator(process_set)
    is_root = comm.world.rank == root_rank
    with refusing(comm, "broadcast_object", name, *OF_BROADCAST):
        data = _to_tensor(obj) if is_root else torch.empty(0, dtype=torch.uint8)
    name = comm.name_for("broadcast_object", name)
    length = torch.tensor([data.numel()], dtype=torch.int64)

    def send(tensor: torch.Tensor, what: str) -> None:
        broadcast_(
            tensor, root_rank, f"{name}.{what}", process_set=comm, timeout_s=timeout_s
        )

    try:
        send(length, "length")
    except BluecommError as error:
        # Some ranks may have got the length, and wait for the data.
        refuse(comm, [("broadcast", f"{name}.data", None)], error)
        raise
    if not is_root:
        data = torch.empty(int(length), dtype=torch.uint8)
    send(data, "data")
    return obj if is_root else _from_tensor(data)


@refuse_unfit_calls(first_named("allgather_object", *OF_ALLGATHER))
def allgather_object(
    obj: Any,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> list[Any]:
    """Return all ranks' objects, in order of rank.

    Args:
        obj: Object that can be pickled.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds after which each of the operations that it consists of
            fails. Default: the configured deadline.

    Returns:
        New list of copies.

    Raises:
        PicklingError: ``obj`` cannot be pickled.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    comm = current_communicator(process_set)
    with refusing(comm, "allgather_object", name, *OF_ALLGATHER):
        data = _to_tensor(obj)
    name = comm.name_for("allgather_object", name)
    gathered = allgather_by_rank(comm, data, name, timeout_s)
    return [_from_tensor(data) for data in gathered]


def _to_tensor(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)


def _from_tensor(data: torch.Tensor) -> Any:
    return pickle.loads(data.numpy().tobytes())
