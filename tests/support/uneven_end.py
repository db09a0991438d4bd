"""A case for ranks that finish at different times, under any launcher."""

from __future__ import annotations

import time
from pathlib import Path

import torch

import bluecomm as bf
from tests.support.deadlines import hear, say


def finish_before_the_others(folder: Path) -> None:
    """Let rank 0 return first; the others still read from and write to its window.

    The caller ends the world, by ``shutdown`` or by the end of the program.

    Args:
        folder: A folder that all ranks have in common.
    """
    bf.set_topology(bf.FullyConnectedGraph(bf.size()))
    bf.win_create(torch.full((1000,), 7.0 + bf.rank()), "uneven")
    bf.barrier()
    if bf.rank() == 0:
        say(folder, "rank 0 has finished")
        return
    hear(folder, "rank 0 has finished")
    time.sleep(0.5)  # it is in shutdown by now, or is gone if it does not serve
    to_zero = {0: 1.0}
    assert bf.win_put(torch.ones(1000), "uneven", dst_weights=to_zero)
    assert bf.win_get("uneven", src_weights=to_zero)
    got = bf.win_update("uneven", self_weight=0.0, neighbor_weights=to_zero, clone=True)
    assert got.unique().tolist() == [7.0]
