"""What is measured: operations of bluecomm, and the same with torch's gloo."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.distributed as dist

from bluecomm import (
    allreduce_,
    neighbor_allreduce,
    neighbor_allreduce_,
    rank,
    shared_empty,
    size,
)

Call = Callable[[], object]
NAMES = ("allreduce", "one-peer")


@dataclasses.dataclass(frozen=True)
class Contender:
    """One way to do an operation; ``prepare(count)`` gives the call to be timed."""

    library: str
    operation: str
    prepare: Callable[[int], Call]


def contenders(operation: str) -> list[Contender]:
    """Return the ways to do an operation, the peer first.

    Raises:
        ValueError: There is no such operation.
    """
    if operation == "allreduce":
        table = {
            "gloo": _gloo_allreduce,
            "bluecomm": lambda count: _allreduce(torch.ones(count)),
            "bluecomm, shared": lambda count: _allreduce(_shared_ones(count)),
        }
    elif operation == "one-peer":
        table = {
            "gloo": _gloo_one_peer,
            "bluecomm": lambda count: _one_peer(torch.ones(count)),
            "bluecomm, shared": lambda count: _one_peer(_shared_ones(count)),
            "bluecomm, shared, in place": _one_peer_in_place,
        }
    else:
        raise ValueError(f"operation must be one of {NAMES}, got {operation!r}")
    return [Contender(library, operation, make) for library, make in table.items()]


def _shared_ones(count: int) -> torch.Tensor:
    return shared_empty(count).fill_(1.0)


def _allreduce(tensor: torch.Tensor) -> Call:
    return lambda: allreduce_(tensor, name="bench")


def _gloo_allreduce(count: int) -> Call:
    tensor = torch.ones(count)

    def call() -> None:
        dist.all_reduce(tensor)
        tensor.div_(size())

    return call


def _one_peer_weights() -> dict[str, object]:
    left, right = (rank() - 1) % size(), (rank() + 1) % size()
    return {
        "self_weight": 0.5,
        "src_weights": {left: 0.5},
        "dst_weights": [right],
        "enable_topo_check": False,
        "name": "bench",
    }


def _one_peer(tensor: torch.Tensor) -> Call:
    weights = _one_peer_weights()
    return lambda: neighbor_allreduce(tensor, **weights)  # type: ignore[arg-type]


def _one_peer_in_place(count: int) -> Call:
    tensor, weights = _shared_ones(count), _one_peer_weights()
    return lambda: neighbor_allreduce_(tensor, **weights)  # type: ignore[arg-type]


def _gloo_one_peer(count: int) -> Call:
    tensor, received = torch.ones(count), torch.empty(count)
    left, right = (rank() - 1) % size(), (rank() + 1) % size()

    def call() -> torch.Tensor:
        exchange = [
            dist.P2POp(dist.isend, tensor, right),
            dist.P2POp(dist.irecv, received, left),
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        return torch.add(tensor, received).mul_(0.5)

    return call
