"""Gives all ranks the root's optimizer state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from bluecomm.ops.broadcast import broadcast_nonblocking_
from bluecomm.ops.objects import broadcast_object
from bluecomm.ops.refusal import refusing
from bluecomm.ops.unfit_calls import first, refuse_unfit_calls
from bluecomm.optim.agreement import FIRST_OPERATION, check_agreement, kind_of
from bluecomm.optim.local_parameters import is_local
from bluecomm.optim.local_state import with_local, without_local
from bluecomm.optim.wrapper import COORDINATOR_KEY, STATE_KEY
from bluecomm.runtime import Communicator, current_communicator
from bluecomm.runtime.handle import wait_all

__all__ = ["broadcast_optimizer_state"]


@dataclasses.dataclass(frozen=True)
class _TensorSlot:
    """Stands in for a tensor, which is sent on its own."""

    number: int
    shape: torch.Size
    dtype: torch.dtype


@refuse_unfit_calls(first("broadcast_optimizer_state", FIRST_OPERATION))
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    *,
    process_set: Communicator | None = None,
) -> None:
    """Give every rank the root's optimizer state: its options and its tensors, exactly.

    Collective. Works for every optimizer that has a ``state_dict``, before its first
    step and after. The state of local parameters (``mark_local``) stays as it is.

    Args:
        optimizer: A plain or distributed optimizer with the same parameters on all
            ranks, except for local ones.
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
    if comm.is_joining:
        return  # it takes over the state of another rank later
    _broadcast(optimizer, root_rank, comm, begins_anew=False)


def broadcast_to_begin_anew(
    optimizer: torch.optim.Optimizer, root_rank: int, comm: Communicator
) -> None:
    """Give every rank the root's optimizer state, and have its algorithm go on with it.

    Collective. The tensors of most algorithms, such as the corrections of exact
    diffusion, belong to one rank, and are valid only together with those of all other
    ranks. They are left out, and the algorithm begins anew from equal parameters, at
    the root's round. Arguments and errors are those of ``broadcast_optimizer_state``.
    """
    _broadcast(optimizer, root_rank, comm, begins_anew=True)


def _broadcast(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    comm: Communicator,
    *,
    begins_anew: bool,
) -> None:
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
        # On the host, as the memory of the other ranks.
        tensors.append(tensor.detach().cpu())
        return _TensorSlot(len(tensors) - 1, tensor.shape, tensor.dtype)

    skeleton = None
    state: dict[str, Any] = {}
    if is_root:
        state = without_local(optimizer.state_dict(), optimizer)
        if begins_anew and not _hands_over(optimizer) and STATE_KEY in state:
            state[STATE_KEY] = {**state[STATE_KEY], "algorithm": {}}
        skeleton = _replace(state, torch.Tensor, take_out)
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
    if begins_anew or not is_root:
        optimizer.load_state_dict(with_local(state, optimizer))


def _hands_over(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the state of its algorithm is valid on other ranks."""
    coordinator = vars(optimizer).get(COORDINATOR_KEY)
    return coordinator is not None and coordinator.algorithm.hands_over_state


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
        "number of param_groups": str(len(optimizer.param_groups)),
        **{
            f"param_groups[{number}]['params'][{position}]"
            f"{names.get(id(parameter), '')}": kind_of(parameter)
            for number, group in enumerate(optimizer.param_groups)
            for position, parameter in enumerate(
                one for one in group["params"] if not is_local(one)
            )
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
