"""The GPU of this rank, for calls that other ranks make on tensors of their GPUs."""

from __future__ import annotations

from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.runtime import current_runtime
from bluecomm.device.staging_table import cuda_staging
from bluecomm.runtime import Communicator
from bluecomm.runtime.own_gpu import own_gpu


def own_device(comm: Communicator, kind: str) -> CudaStaging:
    """Return the staging of this rank's GPU: that of its calls before, if there is one.

    Args:
        comm: Ranks that take part.
        kind: The engine's name of the operation.

    Raises:
        RuntimeError: The process sees no GPU, or too few for the ranks of its machine.
    """
    world = comm.world
    if used := world.nccl_calls.staging:
        return used
    index = own_gpu(world, current_runtime().count())
    if index is None:
        raise RuntimeError(
            f"{kind} on rank {world.rank}: the tensors of another rank are on a GPU, "
            "and this process sees none; start ranks where each has a GPU, or pass "
            "tensors on the CPU on all ranks"
        )
    return cuda_staging(index)
