"""Lists of ranks, as users pass them: lists, sets, ranges, arrays, iterators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from bluecomm.topology.graph import check_rank


def list_ranks(ranks: object, name: str) -> list[Any]:
    """Return the entries of any iterable as a list; a set in ascending order.

    Arrays and tensors become lists of Python's numbers. The entries are not checked.

    Args:
        ranks: The value that the user passed.
        name: The caller's name of the argument, for errors.

    Raises:
        TypeError: ``ranks`` cannot be a list of ranks.
    """
    # numpy's arrays and torch's tensors have tolist(); this layer imports neither.
    if hasattr(ranks, "tolist"):
        ranks = ranks.tolist()
    if not isinstance(ranks, Iterable) or isinstance(ranks, (str, bytes, Mapping)):
        raise TypeError(f"{name} must be a list of ranks, got {ranks!r}")
    return sorted(ranks) if isinstance(ranks, Set) else list(ranks)


def check_ranks(ranks: object, size: int, name: str) -> list[int]:
    """Return the entries of any iterable of ranks as ``int``.

    Args:
        ranks: The value that the user passed.
        size: Number of ranks.
        name: The caller's name of the argument, for errors, such as
            ``"neighbor_allgather: src_ranks"``.

    Raises:
        TypeError: ``ranks`` is not an iterable of integers.
        ValueError: An entry is not in ``0 .. size-1``.
    """
    operation, colon, argument = name.rpartition(": ")
    label = f"{operation}{colon}each of {argument}"
    return [check_rank(rank, size, label) for rank in list_ranks(ranks, name)]
