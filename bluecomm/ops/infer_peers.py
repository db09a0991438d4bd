"""Infers the senders to each rank from the receivers of each, and the reverse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from bluecomm.ops.allgather import allgather_by_rank
from bluecomm.ops.refusal import refusing
from bluecomm.ops.unfit_calls import first, refuse_unfit_calls
from bluecomm.runtime import Communicator, current_communicator
from bluecomm.topology import (
    check_peer_ranks,
    invert_peer_ranks,
    uniform_adjacency_matrix,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Inferred = list[int] | tuple[list[int], NDArray[np.float64]]

__all__ = ["InferDestinationFromSourceRanks", "InferSourceFromDestinationRanks"]

_FIRST = ("allgather", "")


@refuse_unfit_calls(first("infer_dst_ranks", _FIRST))
def InferSourceFromDestinationRanks(  # noqa: N802
    dst_ranks: Iterable[int],
    construct_adjacency_matrix: bool = False,
    *,
    process_set: Communicator | None = None,
) -> Inferred:
    """Return the ranks that send to this one, given whom each rank sends to.

    Collective.

    Args:
        dst_ranks: Ranks that this rank sends to, without itself.
        construct_adjacency_matrix: Whether to return the adjacency matrix, too.
        process_set: Ranks that take part. Default: all.

    Returns:
        List of ranks, ascending. With ``construct_adjacency_matrix`` a pair of the list
        and the ``(n, n)`` matrix ``A``, where ``A[i, j]`` is the uniform weight that
        rank ``j`` gives to the tensor of rank ``i``; each column sums to 1.

    Raises:
        TypeError: A rank is not an integer.
        ValueError: A rank is out of range, listed twice, or this rank itself. Only the
            rank with the wrong list raises it; the others raise MismatchError.
    """
    comm = current_communicator(process_set)
    lists = _gather(comm, dst_ranks, "dst_ranks")
    inverse = invert_peer_ranks(lists, name="dst_ranks")
    if construct_adjacency_matrix:
        return inverse[comm.rank], uniform_adjacency_matrix(lists)
    return inverse[comm.rank]


@refuse_unfit_calls(first("infer_src_ranks", _FIRST))
def InferDestinationFromSourceRanks(  # noqa: N802
    src_ranks: Iterable[int],
    construct_adjacency_matrix: bool = False,
    *,
    process_set: Communicator | None = None,
) -> Inferred:
    """Return the ranks that receive from this one, given whom each rank receives from.

    Collective. It reverses ``InferSourceFromDestinationRanks`` and has the same
    arguments, result and errors.
    """
    comm = current_communicator(process_set)
    lists = _gather(comm, src_ranks, "src_ranks")
    inverse = invert_peer_ranks(lists, name="src_ranks")
    if construct_adjacency_matrix:
        return inverse[comm.rank], uniform_adjacency_matrix(inverse)
    return inverse[comm.rank]


def _gather(comm: Communicator, ranks: Iterable[int], name: str) -> list[list[int]]:
    with refusing(comm, f"infer_{name}", None, _FIRST):
        mine = check_peer_ranks(ranks, rank=comm.rank, size=comm.size, name=name)
    tensor = torch.tensor(mine, dtype=torch.int32)
    gathered = allgather_by_rank(comm, tensor, comm.name_for(f"infer_{name}", None))
    return [entry.tolist() for entry in gathered]
