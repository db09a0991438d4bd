"""Hierarchical neighbor allreduce: machines average with neighboring machines."""

from __future__ import annotations

from typing import NoReturn

import torch

from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.neighbor_weights import (
    DstWeights,
    SrcWeights,
    Weights,
    unknown_argument,
)
from bluecomm.ops.topology_check import CHECK_NOTE
from bluecomm.ops.weighted_average import MACHINES, start_weighted_average
from bluecomm.runtime import Communicator, Handle

__all__ = [
    "hierarchical_neighbor_allreduce",
    "hierarchical_neighbor_allreduce_nonblocking",
]


def _hierarchical_neighbor_allreduce(
    form: Form,
    /,
    tensor: torch.Tensor,
    *,
    self_weight: float | None = None,
    src_machine_weights: SrcWeights | None = None,
    dst_machine_weights: DstWeights | None = None,
    enable_topo_check: bool = False,
    name: str | None = None,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
    **old: NoReturn,
) -> Handle[torch.Tensor]:
    """Return the weighted sum of this machine's and its in-neighbors' averages.

    With ``m_a`` the average of ``x`` over the ranks of machine ``a``, each rank of
    machine ``a`` gets ``self_weight * m_a + sum_b w_b * (d_b * m_b)``, where ``w_b`` is
    ``src_machine_weights[b]`` and ``d_b`` the weight that machine ``b`` gave machine
    ``a`` (1 when none).
    All local ranks carry a share of the traffic between the machines.

    Args:
        tensor: Any shape, a floating-point type, the same on all ranks. Not modified.
        self_weight: Weight of this machine's average; goes with
            ``src_machine_weights``. The ranks of a machine give the same weights.
        src_machine_weights: In-neighbor machine to weight. Default: the machine
            topology's.
        dst_machine_weights: Out-neighbor machine to weight applied before sending; a
            list means weight 1. With it the call is dynamic: any machines may send to
            any, and the other two must be given.
        enable_topo_check: In a dynamic call, let all ranks compare their senders and
            receivers first (a tiny all-gather).
        name: Name under which the ranks' calls find each other. Default: the order of
            the calls without a name.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds until the operation fails. Default: the configured one.
        **old: None may be given: a name from BlueFog's past is told its successor.

    Returns:
        New tensor with the shape and type of ``tensor``, equal on the ranks of a
        machine.

    Raises:
        TypeError: Not a tensor, or of a type that is not supported.
        ValueError: An integer type, weights that do not go together, a machine that is
            no neighbor, or (checked topology) senders and receivers that disagree.
        MismatchError: A rank called it with another shape or type.
        PeerLostError: A rank is gone.
        CommunicationTimeout: Some ranks did not come in time; the text names them.
    """
    for argument in old:
        raise unknown_argument("hierarchical_neighbor_allreduce", argument)
    return start_weighted_average(
        MACHINES,
        tensor,
        Weights(self_weight, src_machine_weights, dst_machine_weights),
        form,
        enable_topo_check=enable_topo_check,
        name=name,
        process_set=process_set,
        timeout_s=timeout_s,
    )


hierarchical_neighbor_allreduce = blocking(_hierarchical_neighbor_allreduce)
hierarchical_neighbor_allreduce_nonblocking = nonblocking(
    _hierarchical_neighbor_allreduce, CHECK_NOTE
)
