"""The neighbors of a rank among which a window is made."""

from __future__ import annotations

from bluecomm.runtime import Communicator


def window_neighbors(comm: Communicator) -> tuple[list[int], list[int]]:
    """Return the in-neighbors and the out-neighbors, in ascending order.

    There are none without a topology.
    """
    if comm.topology is None:
        return [], []
    weights = comm.topology.weights
    return list(weights.src_ranks), list(weights.dst_ranks)
