"""Makes the ranks' tensors equal: to the root's values, or to their average."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from bluecomm.ops.allreduce import allreduce_nonblocking_
from bluecomm.ops.broadcast import broadcast_nonblocking_
from bluecomm.optim import ownership
from bluecomm.optim.hooks.model_hooks import origin_of
from bluecomm.runtime import Communicator, current_communicator
from bluecomm.runtime.handle import wait_all

__all__ = ["allreduce_parameters", "broadcast_parameters"]

Parameters = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]


def broadcast_parameters(
    params: Parameters,
    root_rank: int = 0,
    *,
    process_set: Communicator | None = None,
) -> None:
    """Overwrite tensors with the root's, in place: ``x_i <- x_root``.

    Collective. With ``model.state_dict()`` this covers buffers and frozen parameters.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()``, or other names and
            tensors, the same names on all ranks.
        root_rank: Rank whose values count.
        process_set: Ranks that take part. Default: all.

    Raises:
        TypeError: ``params`` is not names and tensors.
        ValueError: A name is given twice, or ``root_rank`` is not a rank.
        MismatchError: The ranks' tensors differ in shape or type.
        BluecommError: The communication failed.
    """
    comm = current_communicator(process_set)
    tensors = _writable("broadcast_parameters", params)
    wait_all(
        [
            broadcast_nonblocking_(
                tensor, root_rank, f"broadcast_parameters.{name}", process_set=comm
            )
            for name, tensor in tensors
        ]
    )


def allreduce_parameters(
    params: Parameters, *, process_set: Communicator | None = None
) -> None:
    """Overwrite tensors with their average over ranks, in place.

    Collective. Integer tensors (``num_batches_tracked``) keep their values.

    Args:
        params: As in ``broadcast_parameters``.
        process_set: Ranks that take part. Default: all.

    Raises:
        TypeError: ``params`` is not names and tensors.
        ValueError: A name is given twice.
        MismatchError: The ranks' tensors differ in shape or type.
        BluecommError: The communication failed.
    """
    comm = current_communicator(process_set)
    tensors = _writable("allreduce_parameters", params)
    wait_all(
        [
            allreduce_nonblocking_(
                tensor, name=f"allreduce_parameters.{name}", process_set=comm
            )
            for name, tensor in tensors
            if tensor.is_floating_point()
        ]
    )


def _writable(operation: str, params: Parameters) -> list[tuple[str, torch.Tensor]]:
    """Return names and tensors with final values, sorted by name, to overwrite."""
    tensors = [(name, origin_of(tensor)) for name, tensor in named(operation, params)]
    ownership.settle((tensor for _, tensor in tensors), for_writing=True)
    # Autograd must not see parameters change.
    values = [(name, tensor.detach()) for name, tensor in tensors]
    return sorted(values, key=lambda entry: entry[0])


def named(operation: str, params: Parameters) -> list[tuple[str, torch.Tensor]]:
    """Return names and tensors after checking them.

    Raises:
        TypeError: ``params`` is not names and tensors.
        ValueError: A name is given twice.
    """
    entries: list[tuple[str, torch.Tensor]] = []
    for number, entry in enumerate(
        params.items() if isinstance(params, Mapping) else params
    ):
        # BlueFog also accepts a plain list of tensors.
        name, tensor = (
            (str(number), entry) if isinstance(entry, torch.Tensor) else entry
        )
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{operation}: expected names and tensors, got {name!r} and "
                f"{type(tensor).__name__}"
            )
        entries.append((name, tensor))
    names = [name for name, _ in entries]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{operation}: names are given twice: {', '.join(twice)}")
    return entries
