"""Gives all ranks the root's optimizer state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from bluecomm.ops.broadcast import broadcast_nonblocking_
from bluecomm.ops.objects import broadcast_object
from bluecomm.ops.refusal import refusing
from bluecomm.optim.agreement import FIRST_OPERATION, check_agreement, kind_of
from bluecomm.optim.wrapper import COORDINATOR_KEY
from bluecomm.runtime import Communicator, current_communicator
from bluecomm.runtime.handle import wait_all

__all__ = ["broadcast_optimizer_state"]


@dataclasses.dataclass(frozen=True)
class _TensorSlot:
    """Stands in for a tensor, which is sent on its own."""

    number: int
    shape: torch.Size
    dtype: torch.dtype


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    *,
    process_set: Communicator | None = None,
) -> None:
    """Give every rank the root's optimizer state: its options and its tensors, exactly.

    Collective. Works for every optimizer that has a ``state_dict``, before its first
    step and after.

    Args:
        optimizer: A plain or distributed optimizer with the same parameters on all
            ranks.
        root_rank: Rank whose state counts.
        process_set: Ranks that take part. Default: all.

    Raises:
        TypeError: ``optimizer`` is not an optimizer.
        ValueError: ``root_rank`` is not a rank.
        MismatchError: The optimizers' classes, groups or parameters, or the ranks'
            roots, differ; the text names them and the ranks.
        BluecommError: The communication failed.
    """
    comm = current_communicator(process_set)
    with refusing(comm, "broadcast_optimizer_state", None, FIRST_OPERATION):
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                "broadcast_optimizer_state: expected a torch.optim.Optimizer, got "
                f"{type(optimizer).__name__}"
            )
    is_root = comm.world.rank == root_rank
    name = comm.name_for("broadcast_optimizer_state", None)
    remedy = "Make the same optimizer for the same model on all ranks"
    facts = _facts(optimizer, root_rank)
    check_agreement(comm, "broadcast_optimizer_state", facts, remedy, name=name)
    tensors: list[torch.Tensor] = []

    def take_out(tensor: torch.Tensor) -> _TensorSlot:
        tensors.append(tensor.detach())
        return _TensorSlot(len(tensors) - 1, tensor.shape, tensor.dtype)

    skeleton = None
    if is_root:
        skeleton = _replace(optimizer.state_dict(), torch.Tensor, take_out)
    skeleton = broadcast_object(skeleton, root_rank, f"{name}.plan", process_set=comm)
    if not is_root:

        def put_in(slot: _TensorSlot) -> torch.Tensor:
            tensors.append(torch.empty(slot.shape, dtype=slot.dtype))
            return tensors[-1]

        # The walk visits the slots in the order of their numbers.
        state = _replace(skeleton, _TensorSlot, put_in)
    wait_all(
        [
            broadcast_nonblocking_(tensor, root_rank, f"{name}.{k}", process_set=comm)
            for k, tensor in enumerate(tensors)
        ]
    )
    if not is_root:
        optimizer.load_state_dict(state)


def _facts(optimizer: torch.optim.Optimizer, root_rank: int) -> dict[str, str]:
    """Return what must be equal on all ranks, in words."""
    coordinator = vars(optimizer).get(COORDINATOR_KEY)
    names = {
        id(slot.parameter): f" ({slot.name!r})"
        for bucket in (coordinator.buckets if coordinator else ())
        for slot in bucket.slots
    }
    return {
        "root_rank": str(root_rank),
        "optimizer": type(optimizer).__name__,
        **{
            f"param_groups[{number}]['params'][{position}]"
            f"{names.get(id(parameter), '')}": kind_of(parameter)
            for number, group in enumerate(optimizer.param_groups)
            for position, parameter in enumerate(group["params"])
        },
    }


def _replace(tree: Any, kind: type, make: Callable[[Any], Any]) -> Any:
    """Return a copy of nested containers with the leaves of one type replaced."""
    if isinstance(tree, kind):
        return make(tree)
    if isinstance(tree, dict):
        return {key: _replace(value, kind, make) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([_replace(value, kind, make) for value in tree])
    return tree
