"""Neighbor allreduce: every rank averages with its in-neighbors."""

from __future__ import annotations

from typing import NoReturn

import torch

from bluecomm.ops.forms import (
    Form,
    blocking,
    blocking_in_place,
    nonblocking,
    nonblocking_in_place,
)
from bluecomm.ops.neighbor_weights import (
    DstWeights,
    SrcWeights,
    Weights,
    unknown_argument,
)
from bluecomm.ops.topology_check import CHECK_NOTE
from bluecomm.ops.weighted_average import RANKS, start_weighted_average
from bluecomm.runtime import Communicator, Handle

__all__ = [
    "neighbor_allreduce",
    "neighbor_allreduce_",
    "neighbor_allreduce_nonblocking",
    "neighbor_allreduce_nonblocking_",
]


def _neighbor_allreduce(
    form: Form,
    /,
    tensor: torch.Tensor,
    *,
    self_weight: float | None = None,
    src_weights: SrcWeights | None = None,
    dst_weights: DstWeights | None = None,
    enable_topo_check: bool = True,
    name: str | None = None,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
    **old: NoReturn,
) -> Handle[torch.Tensor]:
    """Return the weighted sum of ``tensor`` over this rank and its in-neighbors.

    Rank ``i`` gets ``self_weight * x_i + sum_j src_weights[j] * (d_j * x_j)``, where
    ``d_j`` is the weight that rank ``j`` gave rank ``i`` in its ``dst_weights`` (1 when
    it gave none). The terms are added in ascending order of rank.

    Args:
        tensor: Any shape, a floating-point type; shape and type must match on all
            neighbors. Not modified.
        self_weight: Weight of this rank's own tensor; goes with ``src_weights``.
        src_weights: In-neighbor to weight, applied on arrival. Default: the topology's.
        dst_weights: Out-neighbor to weight, applied before sending; a list of ranks
            means weight 1. With it the call is dynamic: its senders and receivers need
            not be neighbors in the topology, and the other two must be given.
        enable_topo_check: In a dynamic call, let all ranks compare their senders and
            receivers first (a tiny all-gather).
        name: Name under which the ranks' calls find each other. Default: the order of
            the calls without a name.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds until the operation fails. Default: the configured one.
        **old: None may be given: a name from BlueFog's past is told its successor.

    Returns:
        New tensor with the shape and type of ``tensor``; without in-neighbors
        ``self_weight * x_i``.

    Raises:
        TypeError: Not a tensor, or of a type that is not supported.
        ValueError: An integer type, weights that do not go together, a rank that is no
            neighbor, or (checked topology) senders and receivers that disagree.
        MismatchError: A neighbor called it with another shape or type.
        PeerLostError: A neighbor is gone.
        CommunicationTimeout: Some neighbors did not come in time; the text names them.
    """
    for argument in old:
        raise unknown_argument("neighbor_allreduce", argument)
    return start_weighted_average(
        RANKS,
        tensor,
        Weights(self_weight, src_weights, dst_weights),
        form,
        enable_topo_check=enable_topo_check,
        name=name,
        process_set=process_set,
        timeout_s=timeout_s,
    )


neighbor_allreduce = blocking(_neighbor_allreduce)
neighbor_allreduce_nonblocking = nonblocking(_neighbor_allreduce, CHECK_NOTE)
neighbor_allreduce_ = blocking_in_place(
    _neighbor_allreduce,
    "Write the weighted sum over the neighbors to ``tensor`` and return it.",
)
neighbor_allreduce_nonblocking_ = nonblocking_in_place(_neighbor_allreduce, CHECK_NOTE)
