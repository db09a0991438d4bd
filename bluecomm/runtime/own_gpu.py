"""Finds the GPU of a rank among those of its machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bluecomm.device.runtime import current_runtime

if TYPE_CHECKING:
    from bluecomm.runtime.world import World


def own_gpu(world: World, count: int) -> int | None:
    """Return the number of this rank's GPU, among those that the process sees.

    With ``gpus_per_rank`` the process sees only its own, and its first one counts.
    Otherwise it sees all GPUs of its machine, and the n-th rank there has the n-th one.

    Args:
        world: This rank's world.
        count: Number of GPUs that the process sees.

    Returns:
        The number; ``None`` if the process sees no GPU.

    Raises:
        RuntimeError: The machine has more ranks than GPUs, which they must not share.
    """
    if not count:
        return None
    config = world.config
    if config.gpus_per_rank is not None:
        return 0
    number, ranks = _place(world)
    if config.share_gpus:
        return number % count
    if ranks > count:
        raise RuntimeError(
            f"local_device on rank {world.rank}: its machine has {ranks} ranks and "
            f"{count} visible GPUs; start fewer ranks there, or let ranks share GPUs "
            "with bfrun --share-gpus (BLUECOMM_SHARE_GPUS=1). If the launcher shows "
            "each rank GPUs of its own, set BLUECOMM_GPUS_PER_RANK to their number"
        )
    return number


def check_own_gpu(world: World, kind: str, index: int) -> None:
    """Raise if a tensor is on the GPU of another rank of this machine.

    A process that sees fewer GPUs than its machine has ranks may pass tensors on all of
    them: its launcher may show each rank its own, or the ranks share them.

    Args:
        world: This rank's world.
        kind: The engine's name of the operation.
        index: Number of the GPU among those that the process sees.

    Raises:
        ValueError: It is.
    """
    config = world.config
    if config.gpus_per_rank is not None or config.share_gpus:
        return
    number, ranks = _place(world)
    if index != number and index < ranks <= current_runtime().count():
        raise ValueError(
            f"{kind} on rank {world.rank}: the tensor is on GPU {index}, which is that "
            f"of another rank; this rank's is GPU {number} of its machine. Call "
            "torch.cuda.set_device(bluecomm.local_device()) first. If the launcher "
            "shows each rank GPUs of its own, set BLUECOMM_GPUS_PER_RANK to their "
            "number; if ranks share GPUs, set BLUECOMM_SHARE_GPUS=1. bfrun "
            "--gpus-per-rank N and --share-gpus do so"
        )


def _place(world: World) -> tuple[int, int]:
    """Return this rank's number on its real machine, and how many ranks are there."""
    layout = world.real_layout
    return layout.local_rank(world.rank), layout.local_size(world.rank)
