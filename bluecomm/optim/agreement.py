"""Checks that all ranks wrap the same model with the same options.

A bucket is one flat tensor. Two models of different shapes may have buckets of the same
length, which would then be averaged element by element into nonsense.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import torch

from bluecomm.errors import MismatchError
from bluecomm.ops.allgather import allgather_by_rank
from bluecomm.ops.objects import allgather_object
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.runtime import Communicator


def check_agreement(
    comm: Communicator, name: str, what: Sequence[str], buckets: Sequence[Bucket]
) -> None:
    """Compare a new optimizer with those of the other ranks.

    The ranks compare digests of eight bytes, and exchange the full description only if
    the digests differ. The names of parameters may differ, for example when one rank
    compiles its model.

    Args:
        comm: Ranks that take part.
        name: Prefix of the names of its operations, equal on all ranks.
        what: Algorithm and options, in words.
        buckets: Its buckets.

    Raises:
        MismatchError: The ranks differ; the text names the first difference.
    """
    mine = [*what, *_describe(buckets)]
    digest = hashlib.blake2b("\n".join(mine).encode(), digest_size=8).digest()
    tensor = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    digests = allgather_by_rank(comm, tensor, f"{name}.agreement")
    if all(torch.equal(other, digests[0]) for other in digests):
        return
    named = allgather_object(
        (comm.world.rank, mine), f"{name}.disagreement", process_set=comm
    )
    raise MismatchError(_explain(named))


def _describe(buckets: Sequence[Bucket]) -> list[str]:
    return [
        f"a parameter of shape {tuple(slot.shape)}, strides {slot.stride}, "
        f"{bucket.dtype} at {number}:{slot.offset}"
        for number, bucket in enumerate(buckets)
        for slot in bucket.slots
    ]


def _explain(described: Sequence[tuple[int, Sequence[str]]]) -> str:
    first, words = described[0]
    other, others = next(entry for entry in described if entry[1] != words)
    pairs = itertools.zip_longest(words, others, fillvalue="no further parameter")
    ours, theirs = next(pair for pair in pairs if pair[0] != pair[1])
    return (
        f"DistributedOptimizer: rank {first} has {ours}, rank {other} has {theirs}. "
        "All ranks must wrap the same model with the same options, and make their "
        "optimizers in the same order."
    )
