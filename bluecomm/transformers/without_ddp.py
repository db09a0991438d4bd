"""Prepares a Trainer's model for an optimizer of bluecomm."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from accelerate.state import GradientState
from accelerate.utils import GradientAccumulationPlugin
from torch import nn

from bluecomm.basics import init, is_initialized
from bluecomm.runtime import current_communicator

_REFUSED = {
    "fsdp": "leave it out: each rank has the whole model",
    "deepspeed": "leave it out: each rank has the whole model",
    "torch_compile": "call model.compile() before you make the Trainer",
}


def check_arguments(args: Any) -> None:
    """Raise unless a Trainer's arguments fit the ranks of bluecomm.

    Raises:
        ValueError: They do not; the text has the remedy.
    """
    if args.device.type != "cpu":
        raise ValueError(
            f"BluecommCallback trains on CPUs, but the Trainer chose {args.device}; "
            "pass use_cpu=True to TrainingArguments"
        )
    for name, remedy in _REFUSED.items():
        if getattr(args, name):
            raise ValueError(f"BluecommCallback does not work with {name}; {remedy}")
    if not is_initialized():
        init()
    size = current_communicator().size
    if args.world_size != size:
        raise ValueError(
            f"the Trainer has {args.world_size} of the launcher's {size} ranks; call "
            "torch.distributed.init_process_group('bluecomm') before you make "
            "TrainingArguments"
        )


def prepare_without_ddp(model: nn.Module) -> None:
    """Prepare a model as Accelerate does for evaluation: without DDP.

    Accelerate prepares no model twice, so the Trainer adds no DDP. Mixed precision
    works as usual.
    """
    # A new Accelerator shares the settings of the Trainer's, but for these.
    settings = GradientState().plugin_kwargs
    accelerator = Accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(**settings)
    )
    accelerator.prepare_model(model, device_placement=False, evaluation_mode=True)
