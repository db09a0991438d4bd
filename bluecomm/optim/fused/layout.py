"""Divides the parameters of a param group into flat groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from bluecomm.optim.buckets.slots import Slot
from bluecomm.optim.fused.flat_group import FlatGroup
from bluecomm.optim.fused.joined_gradients import row_shape


def lay_out(
    parameters: Sequence[torch.Tensor],
    prefix: str,
    may_fuse: Callable[[torch.Tensor], bool],
    may_move: Callable[[torch.Tensor], bool],
    kinds: dict[str, bool],
) -> tuple[list[FlatGroup], list[torch.Tensor]]:
    """Move parameters into flat memory.

    Args:
        parameters: The parameters of one param group.
        prefix: The param group, for errors.
        may_fuse: Tells whether a parameter may be in a flat group.
        may_move: Tells whether ``p.data`` of a parameter may become a view.
        kinds: See ``FlatState``.

    Returns:
        The flat groups, one for each dtype and device, and the parameters that have to
        be stepped alone.
    """
    alone = []
    slots: dict[tuple[torch.dtype, torch.device], list[Slot]] = {}
    named = [(f"{prefix}['params'][{k}]", p) for k, p in enumerate(parameters)]
    # A parameter that is never stepped would divide its flat group into two runs.
    # Small neighbors whose rows have one shape have their gradients copied together.
    rows: dict[tuple[int, ...] | None, int] = {}
    for parameter in parameters:
        rows.setdefault(row_shape(parameter), len(rows))
    named.sort(key=lambda pair: (not pair[1].requires_grad, rows[row_shape(pair[1])]))
    for name, parameter in named:
        if not (_is_plain(parameter) and may_fuse(parameter)):
            alone.append(parameter)
            continue
        group = slots.setdefault((parameter.dtype, parameter.device), [])
        group.append(Slot.of(name, parameter, group[-1].end if group else 0))
    groups = [
        FlatGroup(
            group,
            group[-1].end,
            [may_move(slot.parameter) for slot in group],
            kinds,
        )
        for group in slots.values()
    ]
    return groups, alone


def _is_plain(parameter: torch.Tensor) -> bool:
    """Return whether a parameter may be moved, and consists of numbers.

    Subclasses, such as DTensor, have rules of their own. Other processes or threads use
    shared memory.
    """
    return (
        type(parameter) in (torch.Tensor, nn.Parameter)
        and parameter.layout is torch.strided
        and (parameter.is_floating_point() or parameter.is_complex())
        and not (parameter.device.type == "cpu" and parameter.is_shared())  # type: ignore[no-untyped-call]
    )


def overlapping(parameters: Sequence[torch.Tensor]) -> set[int]:
    """Return the ``id`` of each parameter that shares memory with another one."""
    extents = []
    for parameter in parameters:
        if _is_plain(parameter) and parameter.numel():
            last = sum(
                (size - 1) * stride
                for size, stride in zip(
                    parameter.shape, parameter.stride(), strict=True
                )
            )
            start = parameter.data_ptr()
            stop = start + (last + 1) * parameter.element_size()
            extents.append((str(parameter.device), start, stop, id(parameter)))
    extents.sort()
    found = set()
    reached: tuple[str, int, int] = ("", 0, 0)
    for device, start, stop, number in extents:
        if reached[0] == device and start < reached[1]:
            found |= {reached[2], number}
        if reached[0] != device or stop > reached[1]:
            reached = device, stop, number
    return found
