"""Moves the tensors of a group's call between a device and the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from bluecomm.device.copy_back import CopyBack
from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.staging import HostCopy, Staging
from bluecomm.device.staging_table import staging_of
from bluecomm.runtime.own_gpu import check_own_gpu

if TYPE_CHECKING:
    from bluecomm.runtime.world import World

# One tensor, one for the rows of each rank, or none.
Destination = torch.Tensor | Sequence[torch.Tensor] | None


class StagedCall(NamedTuple):
    """The memory of a call on the host, where the engine works.

    Attributes:
        copy: The input on its way to the host, or None.
        destination: Memory of the result, one tensor for each of the call.
        finish: Copies the result to the device, in the order of the current stream.
        parts: Copies parts of the result before the call has ended; None if it has
            several tensors, or is too short.
    """

    copy: HostCopy | None
    destination: Destination
    finish: Callable[[int], None]
    parts: CopyBack | None


def staging_for(
    kind: str,
    world: World,
    tensors: Sequence[torch.Tensor],
    bound: torch.device | None,
) -> Staging | None:
    """Return what copies the tensors of a call; None if they are on the host.

    Args:
        kind: The engine's name of the operation.
        world: This rank's world.
        tensors: All tensors of the call.
        bound: Device that the program has given the group, or None.

    Raises:
        ValueError: The tensors are on different devices, on another device than that
            of the group, or on the GPU of another rank.
    """
    if not tensors:
        return None
    staging = staging_of(tensors[0])
    if any(staging_of(tensor) is not staging for tensor in tensors):
        names = sorted({_name(tensor) for tensor in tensors})
        raise ValueError(
            f"{kind} on rank {world.rank}: the tensors of one call must be on the same "
            f"device, got tensors on {' and '.join(names)}; move them with .to()"
        )
    if staging is not None and bound is not None:
        own = _name(tensors[0])
        if own != str(bound):
            raise ValueError(
                f"{kind} on rank {world.rank}: the tensor is on {own}, but "
                f"init_process_group got device_id={bound}; move the tensor with "
                ".to(), or call torch.cuda.set_device() before the program makes it"
            )
    elif isinstance(staging, CudaStaging):
        check_own_gpu(world, kind, staging.index)
    return staging


def stage(
    staging: Staging,
    source: torch.Tensor | None,
    destination: Destination,
    finish: Callable[[int], None],
) -> StagedCall:
    """Return the memory on the host of a call whose tensors are on a device.

    Args:
        staging: Copies the tensors between the device and the host.
        source: Contiguous input, or None.
        destination: Contiguous memory of the result.
        finish: End of the call, which follows the copy of the result.
    """
    copy = None if source is None else staging.to_host(source)
    is_single = isinstance(destination, torch.Tensor)
    targets: Sequence[torch.Tensor] = (
        [destination] if isinstance(destination, torch.Tensor) else destination or []
    )
    results = [staging.empty_on_host(one.shape, one.dtype) for one in targets]
    # The engine waits for the copy of the input, and so for all work before this call.
    before = staging.point() if copy is None and targets else None
    # ``data``, because the call must not change the tensors' version counters.
    copies = [
        staging.copy_back(values, target.data, before)
        for target, values in zip(targets, results, strict=True)
    ]

    def finish_on_device(number: int) -> None:
        for one in copies:
            one.finish()
        finish(number)

    memory: Destination = None
    if destination is not None:
        memory = results[0] if is_single else results
    parts = copies[0] if is_single and copies[0].in_parts else None
    return StagedCall(copy, memory, finish_on_device, parts)


def _name(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's device, such as ``cuda:0``."""
    staging = staging_of(tensor)
    return str(tensor.device) if staging is None else staging.name
