"""Checks and moves of gradients that the C++ code of torch makes on a real GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bluecomm.ops.overlaps import overlap
from bluecomm.ops.tensor import location
from tests.support.fakegpu.tensors import DeviceMemory

_SPARSE_PARAMETERS = ("indices", "values", "size")


def checked_for_sparse(
    memory: DeviceMemory, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Check the arguments of ``torch.sparse_coo_tensor`` on the host.

    Torch reads the indices to check them and to find the size.

    Returns:
        Arguments with which torch does neither, if some were in device memory.
    """
    given = {**dict(zip(_SPARSE_PARAMETERS, args, strict=False)), **kwargs}

    def holds(one: object) -> bool:
        return isinstance(one, torch.Tensor) and memory.holds(one)

    is_read = given.get("check_invariants") is not False or given.get("size") is None
    if not is_read or not any(map(holds, given.values())):
        return given
    seen: dict[str, Any] = {
        name: memory.download(one) if holds(one) else one for name, one in given.items()
    }
    shape = torch.sparse_coo_tensor(**seen).shape
    return {**given, "size": shape, "check_invariants": False}


def check_copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Raise what torch does if it could not copy a tensor, since memory overlaps.

    Raises:
        RuntimeError: Elements of the target share memory with each other, or the target
            with other elements of the source.
    """
    if target.layout != torch.strided or source.layout != torch.strided:
        return
    # The other answers are no, and that the question is too hard.
    if torch._debug_has_internal_overlap(target) == 1:
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor "
            "refers to a single memory location. Please clone() the tensor"
        )
    are_dense = target.is_contiguous() and source.is_contiguous()
    are_same = location(target) == location(source)
    if are_dense and not are_same and overlap(target, source):
        raise RuntimeError(
            "unsupported operation: some elements of the input tensor and the "
            "written-to tensor refer to a single memory location. Please clone()"
        )


def move_gradients(
    memory: DeviceMemory, target: torch.Tensor, source: torch.Tensor
) -> None:
    """Let gradients pass between host and device behind ``target.copy_(source)``.

    Torch moves them to the device of ``source``, and takes both for the host.
    """
    if target.grad_fn is None or memory.holds(target) == memory.holds(source):
        return
    move = memory.upload if memory.holds(source) else memory.download

    def moved(
        gradients: Sequence[torch.Tensor | None], _: object
    ) -> tuple[torch.Tensor | None, ...]:
        return tuple(None if one is None else move(one) for one in gradients)

    target.grad_fn.register_hook(moved)
