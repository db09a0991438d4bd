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
from bluecomm.ops.refusal import describe_refused
from bluecomm.ops.topology_check import CHECK_NOTE
from bluecomm.ops.weighted_average import RANKS, refused_average, start_weighted_average
from bluecomm.runtime import Communicator, Handle

__all__ = [
    "neighbor_allreduce",
    "neighbor_allreduce_",
    "neighbor_allreduce_nonblocking",
    "neighbor_allreduce_nonblocking_",
]


@describe_refused(refused_average(RANKS))
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
    ``d_j`` is the weight that rank ``j`` gave to rank ``i`` in its ``dst_weights``, or
    1 if it gave none. The terms are added in ascending order of rank, in the next wider
    type or with twice the precision of float64, and the sum is rounded once. So a
    weighted average keeps the bits of values on which the ranks agree. Through NCCL
    each addition is rounded, in an order that differs among ranks, so the last bits may
    change.

    The gradient is the same operation with transposed weights, whether ranks are
    neighbors by the topology or by this call: with ``w_ij`` and ``d_ij`` the weights
    that rank ``i`` gave to rank ``j`` in ``src_weights`` and rank ``j`` to rank ``i``
    in ``dst_weights``, ``gx_j = self_weight_j * gy_j + sum_i d_ij * (w_ij * gy_i)``.

    Args:
        tensor: Tensor of any shape and of a floating-point type; both must be the same
            on all neighbors. It is not modified.
        self_weight: Weight of this rank's own tensor. It must be given together with
            ``src_weights``.
        src_weights: Weight of each in-neighbor, applied on arrival. Default: the
            weights of the topology.
        dst_weights: Weight of each out-neighbor, applied before sending; a list of
            ranks means weight 1. It makes the call dynamic: senders and receivers need
            not be neighbors in the topology, and the other two weights must be given.
        enable_topo_check: Whether all ranks first compare their senders and receivers
            in a dynamic call, with a tiny allgather.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.
        **old: Must be empty. The error about an old argument of BlueFog names its
            successor.

    Returns:
        New tensor with the shape and type of ``tensor``. Without in-neighbors it is
        ``self_weight * x_i``.

    Raises:
        TypeError: ``tensor`` is not a tensor, or its type is not supported.
        ValueError: The type is an integer type, the weights do not go together, a rank
            is not a neighbor, or the check found senders and receivers that disagree.
        MismatchError: A neighbor called the operation with another shape or type.
        PeerLostError: A neighbor is lost.
        CommunicationTimeout: Some neighbors did not take part in time; the text names
            them.
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
