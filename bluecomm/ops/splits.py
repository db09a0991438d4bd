"""Numbers of rows for each rank."""

from __future__ import annotations

import numbers
from collections.abc import Iterable

import torch

from bluecomm.topology.rank_lists import list_ranks


def check_splits(
    operation: str, splits: Iterable[int] | torch.Tensor, rows: int, size: int
) -> tuple[int, ...]:
    """Return numbers of rows that divide ``rows`` among ``size`` ranks.

    Raises:
        ValueError: They are not integers, not one for each rank, below 0, or do not add
            up to ``rows``.
    """
    given = list_ranks(splits, f"{operation}: splits")
    if not all(isinstance(count, numbers.Integral) for count in given):
        raise ValueError(f"{operation}: splits must be integers, got {given}")
    counts = tuple(int(count) for count in given)
    if len(counts) != size or min(counts) < 0 or sum(counts) != rows:
        raise ValueError(
            f"{operation}: splits must be {size} numbers >= 0 that add up to the "
            f"{rows} rows of the tensor, got {list(counts)}"
        )
    return counts


def share_of(rows: int, size: int, rank: int) -> int:
    """Return a rank's number of rows if they are divided as evenly as possible."""
    share, extra = divmod(rows, size)
    return share + (1 if rank < extra else 0)
