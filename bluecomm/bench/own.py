"""The operations of bluecomm itself, as the benchmark calls them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bluecomm import (
    Sum,
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    broadcast_,
    compressed_allreduce,
    get_current_created_window_names,
    hierarchical_neighbor_allreduce,
    neighbor_allreduce,
    neighbor_allreduce_,
    pair_gossip,
    rank,
    shared_empty,
    size,
    win_create,
    win_free,
    win_put,
    win_update,
)
from bluecomm.bench.operations import Case, exchange_of
from bluecomm.bench.timing import Call, Turn, after_writing, timed
from bluecomm.compression import MinMaxUInt8
from bluecomm.device.runtime import current_runtime

_NAME = "bench"

# The kinds that NCCL carries out, and those that it does only for floating types.
_THROUGH_NCCL = frozenset({"allreduce", "allgather", "broadcast", "alltoall"})
_FLOATING_THROUGH_NCCL = frozenset(
    {"neighbor_allreduce", "one_peer", "hierarchical_neighbor_allreduce", "pair_gossip"}
)


def may_use_nccl(case: Case) -> bool:
    """Return whether NCCL carries out a case on tensors of GPUs."""
    kind = case.operation.kind
    is_floating = case.dtype.is_floating_point
    return kind in _THROUGH_NCCL or (is_floating and kind in _FLOATING_THROUGH_NCCL)


class Bluecomm:
    """Runs operations on ordinary tensors, those of ``shared_empty``, or of a GPU.

    Args:
        shared: Whether the tensors are in shared memory.
        gpu: Number of the GPU on which they are; None for the host.
    """

    def __init__(self, *, shared: bool, gpu: int | None = None) -> None:
        self._shared = shared
        self._gpu = gpu

    @property
    def name(self) -> str:
        """The name in the results."""
        if self._gpu is not None:
            return "bluecomm, cuda"
        return "bluecomm, shared" if self._shared else "bluecomm"

    def prepare(self, case: Case) -> Turn | None:
        """Return the turn that measures a case; see ``Implementation``."""
        kind = case.operation.kind
        if case.operation.is_one_sided and self._shared:
            return None  # a window has its own memory
        blocks = size() if kind == "allgather" else 1
        # Zeros stay zeros under repeated sums. Writing them allocates the pages.
        tensor = self._empty(case.count // blocks, case.dtype).fill_(0)
        call = _CALLS[kind](tensor, case.operation.in_place)
        if case.is_written:
            call = after_writing(tensor, call)
        if self._gpu is None:
            return timed(call)
        return timed(call, lambda: tensor[:1].cpu())  # waits for the GPU

    def _empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        if self._gpu is not None:
            return current_runtime().empty((count,), dtype, self._gpu)
        return (shared_empty if self._shared else torch.empty)(count, dtype=dtype)


def _allreduce(tensor: torch.Tensor, in_place: bool) -> Call:
    operation = allreduce_ if in_place else allreduce
    return lambda: operation(tensor, op=Sum, name=_NAME)


def _compressed_allreduce(tensor: torch.Tensor, in_place: bool) -> Call:
    codec = MinMaxUInt8()
    return lambda: compressed_allreduce(tensor, codec, _NAME)


def _neighbor_allreduce(tensor: torch.Tensor, in_place: bool) -> Call:
    operation = neighbor_allreduce_ if in_place else neighbor_allreduce
    return lambda: operation(tensor, name=_NAME)


def _one_peer(tensor: torch.Tensor, in_place: bool) -> Call:
    operation = neighbor_allreduce_ if in_place else neighbor_allreduce
    exchange = exchange_of("one_peer", rank(), size())
    assert exchange is not None
    self_weight, sources = exchange.self_weight, exchange.sources
    destinations = list(exchange.destinations)
    return lambda: operation(
        tensor,
        self_weight=self_weight,
        src_weights=sources,
        dst_weights=destinations,
        enable_topo_check=False,
        name=_NAME,
    )


def _hierarchical(tensor: torch.Tensor, in_place: bool) -> Call:
    return lambda: hierarchical_neighbor_allreduce(tensor, name=_NAME)


def _allgather(tensor: torch.Tensor, in_place: bool) -> Call:
    return lambda: allgather(tensor, name=_NAME)


def _broadcast(tensor: torch.Tensor, in_place: bool) -> Call:
    return lambda: broadcast_(tensor, 0, name=_NAME)


def _alltoall(tensor: torch.Tensor, in_place: bool) -> Call:
    return lambda: alltoall(tensor, name=_NAME)


def _pair_gossip(tensor: torch.Tensor, in_place: bool) -> Call:
    exchange = exchange_of("pair_gossip", rank(), size())
    if exchange is None:
        return lambda: None
    (partner,) = exchange.sources
    return lambda: pair_gossip(tensor, partner, name=_NAME)


def _window(tensor: torch.Tensor, name: str) -> None:
    """Replace the window of the previous case by a new one; collective."""
    if name in get_current_created_window_names():
        win_free(name)
    win_create(tensor, name)


def _win_put(tensor: torch.Tensor, in_place: bool) -> Call:
    name = f"{_NAME}.put"
    _window(tensor, name)
    target = [(rank() + 1) % size()]
    return lambda: win_put(tensor, name, dst_weights=target)


def _win_update(tensor: torch.Tensor, in_place: bool) -> Call:
    name = f"{_NAME}.update"
    _window(tensor, name)
    win_put(tensor, name)
    return lambda: win_update(name)


_CALLS: dict[str, Callable[[torch.Tensor, bool], Call]] = {
    "allreduce": _allreduce,
    "compressed_allreduce": _compressed_allreduce,
    "neighbor_allreduce": _neighbor_allreduce,
    "one_peer": _one_peer,
    "hierarchical_neighbor_allreduce": _hierarchical,
    "allgather": _allgather,
    "broadcast": _broadcast,
    "alltoall": _alltoall,
    "pair_gossip": _pair_gossip,
    "win_put": _win_put,
    "win_update": _win_update,
}
