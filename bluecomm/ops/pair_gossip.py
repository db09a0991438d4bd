"""Pair gossip: two ranks average with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import torch

from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.refusal import Operation, describe_refused
from bluecomm.ops.start import start
from bluecomm.ops.tensor import require_floating_point
from bluecomm.ops.transposed_weights import TRANSPOSED_WEIGHTS
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters

__all__ = ["pair_gossip", "pair_gossip_nonblocking"]

_KIND = "pair_gossip"


def _refused(comm: Communicator, arguments: Mapping[str, Any]) -> Iterator[Operation]:
    target = arguments.get("target_rank")
    # Without the pair it is unknown whose call this is.
    if _is_other(target, comm):
        member = comm.ranks.index(target)
        name = comm.pair_name_for(_KIND, arguments["name"], member)
        member = _members_of_call(comm, target).ranks.index(target)
        yield _KIND, name, parameters(sources=((member, 1.0),))


def _group_of_refused(comm: Communicator, arguments: Mapping[str, Any]) -> Communicator:
    target = arguments.get("target_rank")
    return _members_of_call(comm, target) if _is_other(target, comm) else comm


def _is_other(target: Any, comm: Communicator) -> TypeGuard[int]:
    return (
        isinstance(target, int) and target in comm.ranks and target != comm.world.rank
    )


def _members_of_call(comm: Communicator, target: int) -> Communicator:
    """Return the communicator of calls with another rank.

    The pair has one of its own, if tensors on devices go through NCCL. In a job that
    survives losses it goes on with one member.
    """
    if comm.world.device_transport.path != "nccl":
        return comm
    pair = sorted((comm.ranks.index(comm.world.rank), comm.ranks.index(target)))
    return comm.subgroup(pair, "pair", repeats=comm.is_repeated)


@describe_refused(_refused, _group_of_refused)
def _pair_gossip(
    form: Form,
    /,
    tensor: torch.Tensor,
    target_rank: int,
    self_weight: float | None = None,
    pair_weight: float | None = None,
    name: str | None = None,
    *,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Return ``self_weight * x + pair_weight * x_target``; both ranks must call it.

    The gradient of ``x`` is ``self_weight * gy + pair_weight_target * gy_target``, with
    the other rank's weight and gradient.

    Args:
        tensor: Tensor of any shape and of a floating-point type; both must be the same
            on both ranks. It is not modified.
        target_rank: The other rank, which must name this one.
        self_weight: Weight of this rank's tensor. It must be given together with
            ``pair_weight``. Default: 1/2.
        pair_weight: Weight of the other rank's tensor. Default: 1/2.
        name: Name by which the two calls are matched. Calls of a pair without a name
            are matched by their order.
        process_set: Process set that contains the pair. Default: all ranks.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New tensor with the shape and type of ``tensor``.

    Raises:
        TypeError: ``tensor`` is not a tensor, or its type is not supported.
        ValueError: The type is an integer type, only one weight is given, or
            ``target_rank`` is not another rank.
        MismatchError: The other rank called the operation with another shape or type.
        PeerLostError: The other rank is lost.
        CommunicationTimeout: The other rank did not take part in time.
    """
    comm = current_communicator(process_set)
    require_floating_point(_KIND, tensor)
    if (self_weight is None) != (pair_weight is None):
        raise ValueError(
            f"{_KIND}: self_weight and pair_weight have to be given together, got "
            f"self_weight={self_weight}, pair_weight={pair_weight}"
        )
    others = [rank for rank in comm.ranks if rank != comm.world.rank]
    if target_rank not in others:
        raise ValueError(
            f"{_KIND}: target_rank must be one of the other ranks {others}, "
            f"got {target_rank}"
        )
    name = comm.pair_name_for(_KIND, name, comm.ranks.index(target_rank))
    comm = _members_of_call(comm, target_rank)
    member = comm.ranks.index(target_rank)
    return start(
        comm,
        _KIND,
        tensor,
        form,
        name=name,
        timeout_s=timeout_s,
        parameters=parameters(
            self_weight=0.5 if self_weight is None else float(self_weight),
            sources=((member, 0.5 if pair_weight is None else float(pair_weight)),),
            destinations=((member, 1.0),),
        ),
        adjoint=TRANSPOSED_WEIGHTS,
    )


pair_gossip = blocking(_pair_gossip)
pair_gossip_nonblocking = nonblocking(_pair_gossip)
