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
from bluecomm.ops.refusal import describe_refused
from bluecomm.ops.topology_check import CHECK_NOTE
from bluecomm.ops.weighted_average import (
    MACHINES,
    refused_average,
    start_weighted_average,
)
from bluecomm.runtime import Communicator, Handle

__all__ = [
    "hierarchical_neighbor_allreduce",
    "hierarchical_neighbor_allreduce_nonblocking",
]


@describe_refused(refused_average(MACHINES))
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
    All ranks of a machine carry a share of the traffic between the machines.

    The gradient is the same operation with transposed weights, as in
    ``neighbor_allreduce``; between machines with ``n_a`` and ``n_b`` ranks, the
    gradient from machine ``a`` to machine ``b`` has the additional factor
    ``n_a / n_b``.

    Args:
        tensor: Tensor of any shape and of a floating-point type; both must be the same
            on all ranks. It is not modified.
        self_weight: Weight of this machine's average. It must be given together with
            ``src_machine_weights``. All ranks of a machine must pass the same weights.
        src_machine_weights: Weight of each in-neighbor machine. Default: the weights of
            the machine topology.
        dst_machine_weights: Weight of each out-neighbor machine, applied before
            sending; a list of machines means weight 1. It makes the call dynamic: any
            machine may send to any other, and the other two weights must be given.
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
        New tensor with the shape and type of ``tensor``, equal on the ranks of a
        machine.

    Raises:
        TypeError: ``tensor`` is not a tensor, or its type is not supported.
        ValueError: The type is an integer type, the weights do not go together, a
            machine is not a neighbor, or the check found senders and receivers that
            disagree.
        MismatchError: A rank called the operation with another shape or type.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
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
