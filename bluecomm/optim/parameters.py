"""Makes the ranks' tensors equal: to the root's values, or to their average."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from bluecomm.ops.allreduce import allreduce_nonblocking_
from bluecomm.ops.broadcast import broadcast_nonblocking_
from bluecomm.ops.refusal import refusing
from bluecomm.ops.tensor import is_dense, location
from bluecomm.ops.unfit_calls import first, refuse_unfit_calls
from bluecomm.optim import ownership
from bluecomm.optim.agreement import FIRST_OPERATION, check_agreement, kind_of
from bluecomm.optim.hooks.model_hooks import origin_of
from bluecomm.optim.local_parameters import honor_ignored_names, is_local
from bluecomm.runtime import Communicator, current_communicator
from bluecomm.runtime.handle import wait_all

__all__ = ["allreduce_parameters", "broadcast_parameters"]

Parameters = nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]

_REMEDY = "Pass the same names, shapes and types on all ranks"


@refuse_unfit_calls(first("broadcast_parameters", FIRST_OPERATION))
def broadcast_parameters(
    params: Parameters,
    root_rank: int = 0,
    *,
    process_set: Communicator | None = None,
) -> None:
    """Overwrite tensors with the root's, in place: ``x_i <- x_root``.

    Collective. The ranks compare names, shapes and types first, and which tensors share
    their memory (tied weights), which is written once. Local parameters and buffers
    (``mark_local``) are left out. A state dict has their marks only once the
    optimizer is distributed, so pass the model if it has any.

    Args:
        params: A model, for all its parameters and buffers; ``model.state_dict()``,
            ``model.named_parameters()``, or other names and tensors. The names must be
            the same on all ranks.
        root_rank: Rank whose values count.
        process_set: Ranks that take part. Default: all.

    Raises:
        TypeError: ``params`` is neither a model nor names and tensors.
        ValueError: A name is given twice, or ``root_rank`` is not a rank.
        MismatchError: The ranks' names, shapes, types or roots differ; the text names
            the tensors and the ranks.
        BluecommError: The communication failed.
    """
    comm = current_communicator(process_set)
    if comm.is_joining:
        return  # it takes over the state of another rank later
    facts = {"root_rank": str(root_rank)}
    tensors = _writable(comm, "broadcast_parameters", params, facts)
    wait_all(
        [
            broadcast_nonblocking_(
                tensor, root_rank, f"broadcast_parameters.{name}", process_set=comm
            )
            for name, tensor in tensors
        ]
    )


@refuse_unfit_calls(first("allreduce_parameters", FIRST_OPERATION))
def allreduce_parameters(
    params: Parameters, *, process_set: Communicator | None = None
) -> None:
    """Overwrite tensors with their average over ranks, in place.

    Collective. Integer tensors (``num_batches_tracked``) and local ones, as in
    ``broadcast_parameters``, keep their values.

    Args:
        params: As in ``broadcast_parameters``.
        process_set: Ranks that take part. Default: all.

    Raises:
        TypeError: ``params`` is neither a model nor names and tensors.
        ValueError: A name is given twice.
        MismatchError: As in ``broadcast_parameters``.
        BluecommError: The communication failed.
    """
    comm = current_communicator(process_set)
    tensors = _writable(comm, "allreduce_parameters", params, {})
    wait_all(
        [
            allreduce_nonblocking_(
                tensor, name=f"allreduce_parameters.{name}", process_set=comm
            )
            for name, tensor in tensors
            if tensor.is_floating_point()
        ]
    )


def _writable(
    comm: Communicator, operation: str, params: Parameters, facts: dict[str, str]
) -> list[tuple[str, torch.Tensor]]:
    """Return names and tensors with final values, sorted by name, to overwrite.

    If tensors share their memory, as tied weights in a state dict do, only the first
    of them is returned.

    Args:
        comm: Members, which compare names, shapes, types and what shares memory.
        operation: The operation, for error texts.
        params: As in ``broadcast_parameters``.
        facts: More facts that must be equal on all ranks.

    Raises:
        MismatchError: The ranks' tensors or facts differ.
    """
    with refusing(comm, operation, None, FIRST_OPERATION):
        given = named(operation, params)
    tensors = [(name, origin_of(tensor)) for name, tensor in given]
    tensors = [(name, tensor) for name, tensor in tensors if not is_local(tensor)]
    ownership.settle((tensor for _, tensor in tensors), for_writing=True)
    names: dict[object, str] = {}
    facts, written = {**facts}, []
    for name, tensor in sorted(tensors, key=lambda entry: entry[0]):
        owner = names.setdefault(_memory_of(tensor) or name, name)
        facts[repr(name)] = kind_of(tensor)
        if owner == name:
            # Autograd must not see parameters change.
            written.append((name, tensor.detach()))
        else:
            facts[repr(name)] += f" in the memory of {owner!r}"
    check_agreement(
        comm, operation, facts, _REMEDY, name=comm.name_for(operation, None)
    )
    return written


def _memory_of(tensor: torch.Tensor) -> object:
    """Return what tensors of the same bytes have in common; ``None`` for no bytes."""
    if not tensor.numel() or tensor.layout is not torch.strided:
        return None
    if is_dense(tensor):
        return (*location(tensor), tensor.dtype)
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def named(operation: str, params: Parameters) -> list[tuple[str, torch.Tensor]]:
    """Return names and tensors after checking them.

    Raises:
        TypeError: ``params`` is neither a model nor names and tensors.
        ValueError: A name is given twice.
    """
    if isinstance(params, nn.Module):
        honor_ignored_names(params)
        params = [*params.named_parameters(), *params.named_buffers()]
    if not isinstance(params, Iterable):
        raise TypeError(
            f"{operation}: expected a model, or names and tensors, got "
            f"{type(params).__name__}"
        )
    entries: list[tuple[str, torch.Tensor]] = []
    for number, entry in enumerate(
        params.items() if isinstance(params, Mapping) else params
    ):
        # BlueFog also accepts a plain list of tensors.
        pair = (str(number), entry) if isinstance(entry, torch.Tensor) else entry
        match pair:
            case (str() as name, torch.Tensor() as tensor):
                entries.append((name, tensor))
            case _:
                got = type(pair).__name__
                if isinstance(pair, tuple) and len(pair) == 2:
                    got = f"{pair[0]!r} and {type(pair[1]).__name__}"
                raise TypeError(f"{operation}: expected names and tensors, got {got}")
    names = [name for name, _ in entries]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{operation}: names are given twice: {', '.join(twice)}")
    return entries
