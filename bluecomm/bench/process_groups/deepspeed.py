"""DeepSpeed's allreduce over shared memory, for inference on CPUs."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable

import torch

from bluecomm import barrier, rank, size
from bluecomm.bench.operations import Case
from bluecomm.bench.timing import Turn, timed

DEEPSPEED = "deepspeed"


def is_installed() -> bool:
    """Return whether DeepSpeed can be imported."""
    return importlib.util.find_spec("deepspeed") is not None


class DeepSpeed:
    """``deepspeed.comm.inference_all_reduce`` of float32 on one machine.

    Calls the operation below that function, because the function would make a default
    group. Rank 0 compiles the operation at the first use.

    Attributes:
        name: The name in the results.
    """

    name = DEEPSPEED

    def __init__(self) -> None:
        self._sum = _load()

    def prepare(self, collective: str, form: str, case: Case) -> Turn | None:
        """Return the turn of a sync all_reduce; None for all else."""
        if collective != "all_reduce" or form != "sync":
            return None
        tensor = torch.zeros(case.count, dtype=case.dtype)
        return timed(functools.partial(self._sum, tensor))


def _load() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the operation. Collective."""
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    if rank() != 0:
        barrier()
    module = ShareMemCommBuilder().load(verbose=False)
    if rank() == 0:
        barrier()
    # It needs to be told that all ranks are on one machine.
    os.environ["LOCAL_SIZE"] = str(size())
    module.initialize(size(), rank())
    operation: Callable[[torch.Tensor], torch.Tensor]
    operation = torch.ops.deepspeed.inference_all_reduce_
    return operation
