"""Tensors that were moved into shared memory, between ranks."""

from __future__ import annotations

import os

import pytest
import torch

import bluecomm as bf
from bluecomm.ops import share_memory
from tests.support.outcome import outcome_of
from tests.support.ranks import run_ranks


def _move_and_reduce():
    bucket = torch.full((300_000,), float(bf.rank()))
    views = bucket.split(100_000)
    busy = None
    if bf.rank() == 0:
        handle = bf.allreduce_nonblocking_(views[1], name="busy")
        busy = outcome_of(lambda: bf.share_memory_(bucket)).error
        assert bf.share_memory_(torch.ones(3)).sum() == 3  # others may be moved
        bf.barrier()
        handle.wait()
    else:
        bf.barrier()
        bf.allreduce_(views[1], name="busy")
    bf.share_memory_(bucket)
    for _ in range(3):
        bf.allreduce_(views[0])
        bf.allreduce_(bucket)
    return busy, bucket[::100_000].tolist()


@pytest.mark.skipif(
    share_memory._exchange is None and not os.environ.get("CI"),
    reason="needs a newer torch",
)
def test_operations_see_the_moved_memory():
    (busy, first), (_, second) = run_ranks(2, _move_and_reduce)
    assert isinstance(busy, ValueError)
    assert "an operation on the tensor is outstanding" in str(busy)
    assert first == second == [0.5, 0.5, 0.5]
