"""Infers the sources of all ranks from their destinations, and the other way around.

This is the part of ``InferSourceFromDestinationRanks`` and its counterpart that does
not communicate; ``bluecomm.ops`` gathers the lists of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from bluecomm.topology.rank_lists import check_ranks


def check_peer_ranks(
    ranks: Iterable[int], *, rank: int, size: int, name: str
) -> list[int]:
    """Return one rank's list of peers as ``int``.

    Args:
        ranks: Ranks that ``rank`` sends to or receives from: any iterable.
        rank: The rank that the list belongs to.
        size: Number of ranks.
        name: The caller's name of the list, for errors.

    Raises:
        TypeError: ``ranks`` is not an iterable of integers.
        ValueError: An entry is out of range, occurs twice, or is ``rank`` itself.
    """
    label = f"{name} of rank {rank}"
    peers = check_ranks(ranks, size, label)
    if rank in peers:
        raise ValueError(
            f"{label} must not contain the rank itself, got {peers}; use self_weight"
        )
    if len(set(peers)) != len(peers):
        raise ValueError(f"{label} must not contain a rank twice, got {peers}")
    return peers


def invert_peer_ranks(
    ranks_by_rank: Sequence[Iterable[int]], *, name: str
) -> list[list[int]]:
    """Return all ranks' lists of sources from all their destinations, or vice versa.

    Args:
        ranks_by_rank: Entry ``i`` lists the peers of rank ``i``; the same on all ranks.
        name: The caller's name of the lists, for errors.

    Returns:
        Entry ``j`` lists, in ascending order, the ranks whose entry contains ``j``.

    Raises:
        TypeError: An entry is not an integer.
        ValueError: A list has a rank out of range, twice, or its own rank.
    """
    size = len(ranks_by_rank)
    inverse: list[list[int]] = [[] for _ in range(size)]
    for rank, ranks in enumerate(ranks_by_rank):
        for peer in check_peer_ranks(ranks, rank=rank, size=size, name=name):
            inverse[peer].append(rank)
    return inverse


def uniform_adjacency_matrix(
    dst_ranks_by_rank: Sequence[Iterable[int]],
) -> NDArray[np.float64]:
    """Return the adjacency matrix, with uniform weights, of all ranks' destinations.

    Rank ``j`` gives ``1 / (in-neighbors + 1)`` to itself and each in-neighbor.

    Args:
        dst_ranks_by_rank: Entry ``i`` lists the ranks that rank ``i`` sends to.

    Returns:
        New ``(n, n)`` matrix ``A``; ``A[i, j]`` is the weight of edge ``(i, j)``, over
        which ``i`` sends to ``j``. Its columns sum to 1: it is the transpose of a
        row-stochastic mixing matrix. ``networkx.from_numpy_array`` turns it into a
        topology.

    Raises:
        TypeError: An entry is not an integer.
        ValueError: A list has a rank out of range, twice, or its own rank.
    """
    matrix = np.eye(len(dst_ranks_by_rank))
    src_ranks_by_rank = invert_peer_ranks(dst_ranks_by_rank, name="dst_ranks")
    for receiver, sources in enumerate(src_ranks_by_rank):
        matrix[[*sources, receiver], receiver] = 1.0 / (len(sources) + 1)
    return matrix
