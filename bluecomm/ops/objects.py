"""Broadcast and allgather of any Python object that can be pickled.

Like every use of pickle, only for objects from ranks that one trusts; the ranks of a
job are.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

from bluecomm.ops.allgather import allgather_by_rank
from bluecomm.ops.broadcast import broadcast_
from bluecomm.runtime import Communicator, current_communicator


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
) -> Any:
    """Return the root's ``obj`` on every rank.

    Args:
        obj: Anything that can be pickled; ignored on the other ranks.
        root_rank: Rank whose object counts, the same on all ranks.
        name: Name under which the ranks' calls find each other. Default: the order of
            the calls without a name.
        process_set: Ranks that take part. Default: all.

    Returns:
        ``obj`` itself on the root, a copy elsewhere.

    Raises:
        ValueError: ``root_rank`` is not a rank of the process set.
        PicklingError: ``obj`` cannot be pickled (on the root).
        PeerLostError: A rank is gone.
        CommunicationTimeout: Some ranks did not come in time; the text names them.
    """
    comm = current_communicator(process_set)
    name = comm.name_for("broadcast_object", name)
    is_root = comm.world.rank == root_rank
    data = _to_tensor(obj) if is_root else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([data.numel()], dtype=torch.int64)
    broadcast_(length, root_rank, f"{name}.length", process_set=comm)
    if not is_root:
        data = torch.empty(int(length), dtype=torch.uint8)
    broadcast_(data, root_rank, f"{name}.data", process_set=comm)
    return obj if is_root else _from_tensor(data)


def allgather_object(
    obj: Any, name: str | None = None, *, process_set: Communicator | None = None
) -> list[Any]:
    """Return all ranks' objects, in order of rank.

    Args:
        obj: Anything that can be pickled.
        name: Name under which the ranks' calls find each other. Default: the order of
            the calls without a name.
        process_set: Ranks that take part. Default: all.

    Returns:
        New list of copies.

    Raises:
        PicklingError: ``obj`` cannot be pickled.
        PeerLostError: A rank is gone.
        CommunicationTimeout: Some ranks did not come in time; the text names them.
    """
    comm = current_communicator(process_set)
    name = comm.name_for("allgather_object", name)
    return [_from_tensor(t) for t in allgather_by_rank(comm, _to_tensor(obj), name)]


def _to_tensor(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)


def _from_tensor(data: torch.Tensor) -> Any:
    return pickle.loads(data.numpy().tobytes())
