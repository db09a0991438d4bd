"""Operations and windows over encrypted links between ranks."""

from __future__ import annotations

import pytest
import torch

import bluecomm as bf
from tests.support.ranks import run_ranks


def all_kinds_of_messages():
    """Send messages without a payload, eager ones, large ones, and those of windows."""
    me, size = bf.rank(), bf.size()
    bf.barrier()
    for shape in ((0,), (3,), (1 << 20,)):
        x = torch.full(shape, float(me))
        bf.allreduce_(x, average=False)
        assert x.eq(size * (size - 1) / 2).all()
    assert bf.allgather(torch.full((100, 7), me)).shape == (100 * size, 7)
    ring = bf.neighbor_allreduce(torch.full((300_000,), float(me)))
    assert ring.std() < 1e-6
    window = torch.full((50_000,), float(me))
    bf.win_create(window, "w", zero_init=True)
    bf.win_put(window, "w")
    bf.barrier()
    averaged = bf.win_update("w")
    assert averaged.std() < 1e-6
    bf.barrier()
    bf.win_free("w")
    return [len(peer.streams) for peer in bf.stats().neighbors]


@pytest.mark.parametrize("mode", ["auth", "full"])
def test_all_kinds_of_messages(mode):
    settings = {"BLUECOMM_ENCRYPTION": mode, "BLUECOMM_TCP_STREAMS": "2"}
    counts = run_ranks(3, all_kinds_of_messages, transport="tcp", environment=settings)
    assert {number for one in counts for number in one} == {2}
