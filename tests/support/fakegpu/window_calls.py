"""Calls on windows whose values lie on devices; bodies of ranks.

They also run on the host, whose results are expected.
"""

from __future__ import annotations

import torch

import bluecomm as bf

RANKS = 3


def inputs() -> list[torch.Tensor]:
    """Return a tensor for each rank."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 5, generator=generator) for _ in range(RANKS)]


def others() -> dict[int, float]:
    """Return the weight 1 for each other rank."""
    return {rank: 1.0 for rank in range(bf.size()) if rank != bf.rank()}


def use_rounds(x: torch.Tensor, *, zero_init: bool) -> list[torch.Tensor]:
    """Create the window ``x``; return its values after rounds of puts."""
    found = []
    bf.win_create(x, "x", zero_init=zero_init)
    found.append(bf.win_update("x", 1.0, others(), clone=True))
    bf.barrier()
    for round_ in range(3):
        bf.win_put(x, "x")
        bf.barrier()  # all values have arrived
        # The front slot is read by a kernel when the next value is taken.
        found.append(bf.win_update("x", 1.0, others(), clone=True))
        bf.barrier()
        bf.win_wait(bf.win_put_nonblocking(x + round_, "x"))
        bf.win_accumulate(x, "x")  # to what is pending
        bf.barrier()
        found.append(bf.win_update("x", 1.0, others(), clone=True))
        bf.barrier()
        bf.win_accumulate(x, "x")  # to what has been taken
        bf.win_accumulate(x, "x", dst_weights=[(bf.rank() + 1) % bf.size()])
        bf.barrier()
        found.append(bf.win_update("x", 1.0, others(), clone=True))
        assert sum(bf.get_win_version("x").values()) == 0
        bf.barrier()
    return found


def end_rounds(x: torch.Tensor) -> list[torch.Tensor]:
    """Return values of the window ``x`` after a collection, and after puts of 0."""
    bf.win_accumulate(x, "x", require_mutex=True)
    bf.barrier()
    bf.win_update_then_collect("x")
    found = [x + 0]
    bf.barrier()
    bf.win_put(x, "x", dst_weights=dict.fromkeys(others(), 0.0))
    bf.barrier()
    found.append(bf.win_update("x", 0.0, others(), clone=True))
    return found


def use_weights(x: torch.Tensor) -> list[torch.Tensor]:
    """Return what calls with weights, and a tensor that is not contiguous, give."""
    y = x.t()
    bf.win_create(y, "y")
    bf.turn_on_win_ops_with_associated_p()
    share = 1 / 3
    bf.win_accumulate(y, "y", share, dict.fromkeys(others(), share))
    bf.barrier()
    bf.win_update_then_collect("y")
    found = [y / bf.win_associated_p("y")]
    bf.barrier()
    bf.win_put(y.cpu(), "y", dst_weights=dict.fromkeys(others(), 0.3))
    bf.barrier()
    found.append(bf.win_update("y", clone=True))
    bf.turn_off_win_ops_with_associated_p()
    return [*found, y]
