"""The weights of a neighbor operation, from its arguments or from the topology."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bluecomm.topology import NeighborWeights
from bluecomm.topology.graph import check_rank
from bluecomm.topology.rank_lists import list_ranks

SrcWeights = Mapping[int, float]
DstWeights = Mapping[int, float] | Iterable[int]

# Argument names that BlueFog's documentation still mentions, and their successors.
RENAMED = {
    "neighbor_weights": "src_weights",
    "send_neighbors": "dst_weights",
    "neighbor_machine_weights": "src_machine_weights",
    "send_neighbor_machines": "dst_machine_weights",
    "send_machine_neighbors": "dst_machine_weights",
}


def unknown_argument(operation: str, name: str) -> TypeError:
    """Return the error of an argument that an operation does not have."""
    if name in RENAMED:
        return TypeError(f"{operation} has no argument {name!r}; use {RENAMED[name]!r}")
    return TypeError(f"{operation} got an unexpected keyword argument {name!r}")


class Weights(NamedTuple):
    """The weights of one call; without any, those of the topology apply."""

    self_weight: float | None = None
    src_weights: SrcWeights | None = None
    dst_weights: DstWeights | None = None


STATIC = Weights()


@dataclasses.dataclass(frozen=True)
class ResolvedWeights:
    """The part of one rank in a neighbor operation; pairs are (member, weight)."""

    self_weight: float
    sources: list[tuple[int, float]]
    destinations: list[tuple[int, float]]
    is_dynamic: bool


@dataclasses.dataclass(frozen=True)
class Wording:
    """The words for an operation, its members and its arguments in error texts."""

    operation: str
    member: str = "rank"
    src: str = "src_weights"
    dst: str = "dst_weights"


def resolve(
    words: Wording,
    static: NeighborWeights | None,
    member: int,
    size: int,
    weights: Weights,
) -> ResolvedWeights:
    """Return the part of one node of the graph in one call.

    A call without weights uses those of the topology. ``self_weight`` and
    ``src_weights`` without ``dst_weights`` change the weights of the in-neighbors. An
    in-neighbor that ``src_weights`` leaves out still sends, and has weight 0.
    ``dst_weights`` makes the call dynamic: any rank may send to any other, and the
    topology is ignored.

    Raises:
        TypeError: A rank is not an integer.
        ValueError: Only one of ``self_weight`` and ``src_weights`` is given, or
            ``dst_weights`` is given without them; a weight is not a finite number; a
            rank is out of range, named twice, this rank itself or, in a static call,
            not an in-neighbor; or no topology is set.
    """
    self_weight, src_weights, dst_weights = weights
    if (self_weight is None) != (src_weights is None):
        raise ValueError(
            f"{words.operation}: self_weight and {words.src} have to be given "
            f"together, got self_weight={self_weight}, {words.src}={src_weights}"
        )
    if dst_weights is not None:
        if self_weight is None or src_weights is None:
            raise ValueError(
                f"{words.operation}: {words.dst} makes the topology of this call "
                f"dynamic and needs self_weight and {words.src} too"
            )
        return ResolvedWeights(
            weight_number(words, "self_weight", self_weight),
            sorted(weight_pairs(words, words.src, src_weights, member, size)),
            sorted(weight_pairs(words, words.dst, dst_weights, member, size)),
            is_dynamic=True,
        )
    if static is None:
        raise ValueError(
            f"{words.operation}: no topology is set; call set_topology first"
        )
    destinations = [(rank, 1.0) for rank in static.dst_ranks]
    if self_weight is None or src_weights is None:
        sources = list(static.src_weights.items())
        return ResolvedWeights(static.self_weight, sources, destinations, False)
    given = dict(weight_pairs(words, words.src, src_weights, member, size))
    strangers = sorted(set(given) - set(static.src_weights))
    if strangers:
        raise ValueError(
            f"{words.operation}: the keys of {words.src} must be in-neighbors of "
            f"{words.member} {member}, which are {list(static.src_weights)}; "
            f"got {strangers}"
        )
    sources = [(rank, given.get(rank, 0.0)) for rank in static.src_weights]
    own = weight_number(words, "self_weight", self_weight)
    return ResolvedWeights(own, sources, destinations, is_dynamic=False)


def weight_pairs(
    words: Wording,
    argument: str,
    weights: SrcWeights | DstWeights,
    member: int,
    size: int,
) -> list[tuple[int, float]]:
    """Return the weights of one argument as pairs of node and weight.

    Raises:
        TypeError: A rank is not an integer.
        ValueError: A weight is not a finite number; a rank is out of range, named twice
            or this rank itself; or the argument has a wrong type.
    """
    where = f"{words.operation}: {argument}"
    items: Iterable[tuple[int, float]]
    if isinstance(weights, Mapping):
        items = weights.items()
    elif argument == words.dst:
        items = [(rank, 1.0) for rank in list_ranks(weights, where)]
    else:
        raise ValueError(
            f"{where} must be a dict that maps {words.member}s to weights, got "
            f"{type(weights).__name__}"
        )
    pairs = [
        (
            check_rank(rank, size, f"{where}: each {words.member}"),
            weight_number(words, argument, weight),
        )
        for rank, weight in items
    ]
    ranks = [rank for rank, _ in pairs]
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"{where} names a {words.member} twice: {sorted(ranks)}")
    if member in ranks:
        raise ValueError(
            f"{where} must not contain {words.member} {member} itself; use self_weight"
        )
    return pairs


def weight_number(words: Wording, argument: str, weight: object) -> float:
    """Return a weight as a float.

    Raises:
        ValueError: The weight is not a number, or is not finite.
    """
    if (
        isinstance(weight, bool)
        or not isinstance(weight, numbers.Real)
        or not math.isfinite(weight)
    ):
        raise ValueError(
            f"{words.operation}: the weights of {argument} must be finite "
            f"numbers, got {weight!r}"
        )
    return float(weight)
