"""The cases of the benchmark: operations, partners of a rank, bus bandwidth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

Layout = Sequence[int]
"""The machine of each rank, numbered from 0."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation and the rule for its bandwidth.

    ``bus_factor`` returns for a layout the bytes that must pass between ranks, per rank
    and byte of size; see ``bus_bandwidth``. With ``is_divided`` each rank handles a
    block per rank, and with ``is_weighted`` the elements must be floating-point.
    """

    name: str
    title: str
    bus_factor: Callable[[Layout], float]
    is_divided: bool = False
    is_weighted: bool = False

    @property
    def in_place(self) -> bool:
        """Whether the result replaces the input."""
        return self.name.endswith("_")

    @property
    def is_one_sided(self) -> bool:
        """Whether it uses a window, which the peers do not have."""
        return self.name.startswith("win_")

    @property
    def kind(self) -> str:
        """The operation's name without the suffix of the in-place form."""
        return self.name.rstrip("_")


def _allreduce_factor(layout: Layout) -> float:
    return 2 * (len(layout) - 1) / len(layout)


def _block_factor(layout: Layout) -> float:
    return (len(layout) - 1) / len(layout)


def _degree(layout: Layout) -> float:
    return float(len(exponential_hops(len(layout))))


def _hierarchical_factor(layout: Layout) -> float:
    """Return the factor of a local allreduce and an exchange of each rank's share."""
    local = layout.count(layout[0])
    return 2 * (local - 1) / local + len(exponential_hops(max(layout) + 1)) / local


def _one(layout: Layout) -> float:
    return 1.0


_LIST = (
    Operation("allreduce_", "allreduce, in place", _allreduce_factor),
    Operation("allreduce", "allreduce", _allreduce_factor),
    Operation(
        "compressed_allreduce",
        "compressed_allreduce by MinMaxUInt8; peers: allreduce",
        _allreduce_factor,
        is_weighted=True,
    ),
    Operation(
        "neighbor_allreduce_",
        "neighbor_allreduce, exponential-2, in place",
        _degree,
        is_weighted=True,
    ),
    Operation(
        "neighbor_allreduce",
        "neighbor_allreduce, exponential-2",
        _degree,
        is_weighted=True,
    ),
    Operation(
        "one_peer_",
        "neighbor_allreduce, one peer, in place",
        _one,
        is_weighted=True,
    ),
    Operation("one_peer", "neighbor_allreduce, one peer", _one, is_weighted=True),
    Operation(
        "hierarchical_neighbor_allreduce",
        "hierarchical_neighbor_allreduce",
        _hierarchical_factor,
        is_weighted=True,
    ),
    Operation("allgather", "allgather", _block_factor, is_divided=True),
    Operation("broadcast_", "broadcast, in place", _one),
    Operation("alltoall", "alltoall", _block_factor, is_divided=True),
    Operation("pair_gossip", "pair_gossip", _one, is_weighted=True),
    Operation("win_put", "win_put to one neighbor", _one, is_weighted=True),
    Operation("win_update", "win_update, exponential-2", _degree, is_weighted=True),
)
OPERATIONS = {operation.name: operation for operation in _LIST}


def title_of(name: str) -> str:
    """Return the title of an operation; those of torch have none but their name."""
    return OPERATIONS[name].title if name in OPERATIONS else name


@dataclasses.dataclass(frozen=True)
class Case:
    """One operation on tensors of one type and size.

    ``count`` is the number of elements of the larger of a rank's input and output; the
    input of an allgather is one block of it. With ``is_written`` every rank writes its
    input before each call, and the time of the writing counts.
    """

    operation: Operation
    dtype: torch.dtype
    count: int
    is_written: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the larger of a rank's input and output."""
        return self.count * self.dtype.itemsize

    @property
    def dtype_name(self) -> str:
        """The element type without torch's prefix, such as ``float32``."""
        return str(self.dtype).removeprefix("torch.")

    def why_not_on(self, layout: Layout) -> str:
        """Return why these ranks cannot run the case; empty if they can."""
        operation = self.operation
        if operation.is_weighted and not self.dtype.is_floating_point:
            return (
                f"{operation.name} with {self.dtype_name}: "
                "a weighted average of integers is not an integer"
            )
        if operation.kind.startswith("hierarchical") and max(layout) == 0:
            return (
                f"{operation.name} needs more than one machine; "
                "bfrun --ranks-per-machine N simulates them"
            )
        return ""


def case_of(
    operation: Operation, dtype: torch.dtype, nbytes: int, world_size: int
) -> Case:
    """Return the case nearest to a size, with equal whole elements for each rank."""
    blocks = world_size if operation.is_divided else 1
    count = max(1, round(nbytes / dtype.itemsize / blocks)) * blocks
    return Case(operation, dtype, count)


@dataclasses.dataclass(frozen=True)
class Neighborhood:
    """A rank's sources with their weights, and its destinations."""

    self_weight: float
    sources: dict[int, float]
    destinations: tuple[int, ...]


def exponential_hops(world_size: int) -> list[int]:
    """Return the hops of the exponential-2 graph: 1, 2, 4, ... below its size."""
    return [1 << k for k in range((world_size - 1).bit_length())]


def exchange_of(kind: str, rank: int, world_size: int) -> Neighborhood | None:
    """Return a rank's exchange in an operation with neighbors.

    Args:
        kind: ``neighbor_allreduce`` (exponential-2), ``one_peer`` (rank ``i`` reads
            ``i - 1``) or ``pair_gossip`` (ranks 0 and 1, 2 and 3, ...).
        rank: The rank.
        world_size: Number of ranks, at least 2.

    Returns:
        The exchange; ``None`` for a last rank without a partner.

    Raises:
        ValueError: The kind has no neighbors.
    """
    if kind == "neighbor_allreduce":
        hops = exponential_hops(world_size)
    elif kind == "one_peer":
        hops = [1]
    elif kind == "pair_gossip":
        partner = rank ^ 1
        if partner >= world_size:
            return None
        return Neighborhood(0.5, {partner: 0.5}, (partner,))
    else:
        raise ValueError(f"no operation with neighbors: {kind!r}")
    weight = 1 / (len(hops) + 1)
    sources = {(rank - hop) % world_size: weight for hop in hops}
    return Neighborhood(
        weight, sources, tuple((rank + hop) % world_size for hop in hops)
    )


def weighted_sum(
    own: torch.Tensor,
    received: Sequence[torch.Tensor],
    exchange: Neighborhood,
    output: torch.Tensor,
) -> None:
    """Write an exchange's weighted sum to ``output``, which may be ``own``.

    Peers without such a sum use this; it takes as few passes over memory as torch
    allows.
    """
    weights = list(exchange.sources.values())
    if len(received) == 1 and exchange.self_weight + weights[0] == 1:
        torch.lerp(own, received[0], weights[0], out=output)
        return
    torch.mul(own, exchange.self_weight, out=output)
    for tensor, weight in zip(received, weights, strict=True):
        output.add_(tensor, alpha=weight)


def bus_bytes(operation: Operation, nbytes: int, layout: Layout) -> float:
    """Return the bytes that must pass a rank's link for ``nbytes`` of size."""
    return operation.bus_factor(layout) * nbytes


def bus_bandwidth(
    operation: Operation, nbytes: int, us: float, layout: Layout
) -> float:
    """Return the bus bandwidth of an operation in 10^9 bytes per second.

    It is ``factor * nbytes / time``, where ``factor * nbytes`` bytes must pass a rank's
    link. If the links are the limit, it does not depend on the number of ranks and can
    be compared with the speed of the links. For n ranks ``factor`` is 2 (n - 1) / n for
    allreduce, (n - 1) / n for allgather and alltoall, and 1 for broadcast; an operation
    with neighbors receives ``nbytes`` from each.

    Args:
        operation: The operation.
        nbytes: Bytes of the larger of a rank's input and output.
        us: Time of one operation, in microseconds.
        layout: Machine of each rank.

    Returns:
        10^9 bytes per second.

    Source:
        nccl-tests, doc/PERFORMANCE.md, for allreduce, allgather, alltoall, broadcast.
        The factors of operations with neighbors follow its reasoning for sendrecv.
    """
    return bus_bytes(operation, nbytes, layout) / us / 1e3
