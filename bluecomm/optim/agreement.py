"""Checks that all ranks have the same model and the same options.

A bucket is one flat tensor. Without the check, buckets of equal length from models of
different shapes would be averaged element by element, and ranks with a tensor that
another rank lacks would wait until their deadline.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence

import torch

from bfrun.wording import count, format_ranks
from bluecomm.errors import MismatchError
from bluecomm.ops.allgather import allgather_by_rank
from bluecomm.ops.objects import allgather_object
from bluecomm.runtime import Communicator

# Facts on which the ranks must agree: a noun phrase, such as "parameter 'bias'", and a
# value for each.
Facts = Mapping[str, str]

_SHOWN = 3


# Kind of the first operation of ``check_agreement``, and what follows the given name in
# its name.
FIRST_OPERATION = ("allgather", ".agreement")


def check_agreement(
    comm: Communicator,
    operation: str,
    facts: Facts,
    remedy: str,
    *,
    name: str,
    compared: Sequence[str] | None = None,
) -> None:
    """Raise on all ranks unless they agree.

    Collective. The ranks compare digests of eight bytes, and exchange the facts only if
    the digests differ. A newcomer compares nothing before it has joined.

    Args:
        comm: Ranks that take part.
        operation: Name of the function that the user called.
        facts: The facts of this rank.
        remedy: Last sentence of the error, which says what to do.
        name: Prefix of the operations' names, equal on all ranks.
        compared: Texts that must be equal on all ranks. Default: the facts.

    Raises:
        MismatchError: The ranks differ; the text names the differences.
    """
    if comm.is_joining:
        return  # the others have agreed before
    if compared is None:
        compared = [f"{key}: {value}" for key, value in facts.items()]
    digest = hashlib.blake2b("\n".join(compared).encode(), digest_size=8).digest()
    tensor = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    digests = allgather_by_rank(comm, tensor, name + FIRST_OPERATION[1])
    if all(torch.equal(other, digests[0]) for other in digests):
        return
    of_members: list[tuple[Facts, list[str]]] = allgather_object(
        (dict(facts), list(compared)), f"{name}.disagreement", process_set=comm
    )
    differences = _differences(comm, [facts for facts, _ in of_members])
    if not differences:
        differences = [_first_difference(comm, [texts for _, texts in of_members])]
    what = "; ".join(differences[:_SHOWN])
    more = len(differences[_SHOWN:])
    if more:
        what += f"; and {count(more, 'more difference')}"
    raise MismatchError.describe(
        what,
        operation=operation,
        peers=comm.ranks,
        remedy=remedy,
    )


def kind_of(tensor: torch.Tensor) -> str:
    """Return the dtype and shape of a tensor, in words."""
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def _differences(comm: Communicator, of_members: Sequence[Facts]) -> list[str]:
    """Return the facts that differ, in words."""
    keys = dict.fromkeys(key for facts in of_members for key in facts)
    differences = []
    for key in keys:
        ranks_of: dict[str, list[int]] = {}
        for rank, facts in zip(comm.ranks_left, of_members, strict=False):
            ranks_of.setdefault(facts.get(key, "missing"), []).append(rank)
        if len(ranks_of) > 1:
            parts = [
                f"{value} on {format_ranks(ranks, noun=True)}"
                for value, ranks in ranks_of.items()
            ]
            differences.append(f"{key} is {', but '.join(parts)}")
    return differences


def _first_difference(comm: Communicator, of_members: Sequence[Sequence[str]]) -> str:
    """Return the first difference between members with the same facts, in words."""
    first = of_members[0]
    rank, texts = next(
        entry
        for entry in zip(comm.ranks_left, of_members, strict=False)
        if list(entry[1]) != list(first)
    )
    pairs = itertools.zip_longest(first, texts, fillvalue="nothing")
    ours, theirs = next(pair for pair in pairs if pair[0] != pair[1])
    return f"rank {comm.ranks_left[0]} has {ours}, but rank {rank} has {theirs}"
