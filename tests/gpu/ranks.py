"""Runs a function on ranks that share one GPU, as if each were on a host of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from bluecomm.device import runtime
from tests.gpu.memory import CudaMemory, CudaRuntime, TensorsOfTests
from tests.gpu.pair import NCCL_ON_ONE_GPU
from tests.support.ranks import run_ranks


def run_ranks_on_one_gpu(
    world_size: int,
    body: Callable[..., Any],
    *args: Any,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> list[Any]:
    """Return what ``body(*args)`` returns on each rank; see ``run_ranks_on_gpus``.

    Args:
        world_size: Number of ranks.
        body: As for ``run_ranks``. Tensors that it makes are on the GPU.
        *args: Its arguments. Their tensors are moved to the GPU.
        environment: Additional environment variables.
        **options: As for ``run_ranks``.

    Raises:
        RankFailure: As in ``run_ranks``.
    """
    where = {
        **NCCL_ON_ONE_GPU,
        "NCCL_DEBUG": "WARN",
        "BLUECOMM_SHARE_GPUS": "1",
        **(environment or {}),
    }
    return run_ranks(
        *(world_size, _run_on_gpu, body, args),
        environment=where,
        initialize=False,
        **options,
    )


def _run_on_gpu(body: Callable[..., Any], args: Sequence[Any]) -> Any:
    torch.cuda.set_device(0)
    return run_on_device(body, args, torch.device("cuda", 0))


def run_on_device(
    body: Callable[..., Any], args: Sequence[Any], device: torch.device
) -> Any:
    """Run ``body`` on this rank, with tensors of a device."""
    import bluecomm as bf

    # NCCL refuses two ranks on one GPU of one host. It may read the variable only once,
    # and this process may have another rank in the next job.
    os.environ["NCCL_HOSTID"] = f"bluecomm-host-{os.getpid()}"
    memory = CudaMemory(device)
    with runtime.use(CudaRuntime(memory)), TensorsOfTests(memory):
        bf.init()
        result = body(*tree_map_only(torch.Tensor, memory.upload, list(args)))
        result = tree_map_only(torch.Tensor, memory.download, result)
        torch.cuda.synchronize()
        bf.shutdown()
    return result
