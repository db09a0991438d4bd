"""Settings in which Accelerate, and Hugging Face's ``Trainer``, find the ranks."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bluecomm_autoload import register
from tests.support.ranks import run_ranks

# The imports of a trainer take a minute where other tests run beside.
TRAINER_LIMIT_S = 1500.0


def run_trainers(
    size: int, body: Callable[..., Any], *args: Any, **options: Any
) -> list[Any]:
    """Return what ``body(*args)`` returns on each rank, with time for its imports."""
    return run_ranks(size, body, *args, limit_s=TRAINER_LIMIT_S, **options)


@contextlib.contextmanager
def process_group(
    folder: str, rank: int, size: int, backend: str = "bluecomm"
) -> Iterator[None]:
    """Make torch's default group, and set the variables that trainers look at."""
    register()
    told = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        # Lightning takes the ranks for those of torchrun.
        "TORCHELASTIC_RUN_ID": "test",
        "GROUP_RANK": "0",
    }
    os.environ.update(told)
    for name in ("transformers", "accelerate", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    method = f"file://{folder}/store of {backend}"
    dist.init_process_group(backend, init_method=method, rank=rank, world_size=size)
    from accelerate.state import AcceleratorState

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        AcceleratorState._reset_state(True)
        if dist.is_initialized():
            dist.destroy_process_group()
        for key in told:
            os.environ.pop(key, None)


def training_arguments(folder: str, **settings: Any) -> Any:
    """Return ``TrainingArguments`` for a short training that is easily repeated."""
    from transformers import TrainingArguments

    return TrainingArguments(
        **{
            "output_dir": folder,
            "use_cpu": True,
            "num_train_epochs": 1,
            "per_device_train_batch_size": 8,
            "learning_rate": 0.1,
            "lr_scheduler_type": "constant",
            "optim": "sgd",
            "max_grad_norm": 0.0,
            "average_tokens_across_devices": False,
            "train_sampling_strategy": "sequential",
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            **settings,
        }
    )


def flat(model: nn.Module) -> torch.Tensor:
    """Return a copy of all parameters as one vector."""
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])
