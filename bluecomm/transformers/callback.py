"""The callback that makes a Trainer's optimizer communicate."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from bluecomm.optim import DistributedOptimizer
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.model_average import average_model
from bluecomm.optim.parameters import broadcast_parameters
from bluecomm.optim.rank_files import agreed_part, digests_of, part_of, path_of_rank
from bluecomm.optim.registry import get_algorithm
from bluecomm.optim.wrapper import Distributed
from bluecomm.transformers.without_ddp import check_arguments, prepare_without_ddp


class BluecommCallback(TrainerCallback):  # type: ignore[misc]  # has no types
    """Trains with any algorithm of ``DistributedOptimizer``, and without DDP.

    Put it last in the Trainer's ``callbacks=``. The ranks start with the model of rank
    0, and see different batches, as with DDP. They evaluate and save the average of
    their models, and have it when ``train`` returns. Into each checkpoint each rank
    writes a file of its own, from which as many ranks continue exactly. Later Trainers
    do not wrap the model in DDP, either.

    Args:
        algorithm: Name or class of the algorithm.
        **options: Options of ``DistributedOptimizer``.

    Raises:
        TypeError: The algorithm is neither a name nor a class.
        ValueError: The algorithm is unknown; or, when the Trainer is made, its
            arguments do not fit.
        RuntimeError: When training begins: the Trainer was made without the callback.
    """

    def __init__(
        self,
        algorithm: str | type[Algorithm] = "neighbor_allreduce",
        **options: Any,
    ) -> None:
        self._keeps_equal = get_algorithm(algorithm).flat_gradients
        self._algorithm = algorithm
        self._options = options
        self._model: Any = None
        self._plain: Any = None
        # This rank's model while the average replaces it.
        self._own: dict[str, Any] | None = None

    def on_init_end(self, args: Any, state: Any, control: Any, **facts: Any) -> None:
        """Check the Trainer's arguments, and keep DDP away from its model."""
        check_arguments(args)
        self._model = facts["model"]
        prepare_without_ddp(self._model)

    def on_train_begin(self, args: Any, state: Any, control: Any, **facts: Any) -> None:
        """Make the Trainer's optimizer a distributed one. Collective."""
        model, accelerated = facts["model"], facts["optimizer"]
        if model is not self._model:
            raise RuntimeError(
                "BluecommCallback has not prepared this model; pass the callback as "
                "callbacks=[...] of the Trainer instead of add_callback, and model= "
                "instead of model_init="
            )
        broadcast_parameters(model)
        self._own = None
        # Otherwise an earlier training has failed, and its optimizer is still there.
        if not isinstance(accelerated.optimizer, Distributed):
            self._plain = accelerated.optimizer
        accelerated.optimizer = optimizer = DistributedOptimizer(
            self._plain, model, algorithm=self._algorithm, **self._options
        )
        # Accelerate enters it for all backward passes of a step but the last.
        model.no_sync = optimizer.no_sync
        if state.global_step and not self._keeps_equal:
            own = _load_own(_folder(args, state), model)
            if own is not None:
                model.load_state_dict(own["model"])
                optimizer.load_state_dict(own["optimizer"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **facts: Any) -> None:
        """Give this rank its own model back."""
        if self._own is not None:
            facts["model"].load_state_dict(self._own)
            self._own = None

    def on_step_end(self, args: Any, state: Any, control: Any, **facts: Any) -> None:
        """Give all ranks the average of their models, to evaluate or save it."""
        if control.should_evaluate or control.should_save:
            self._show_average(facts["model"])

    on_epoch_end = on_step_end

    def on_save(self, args: Any, state: Any, control: Any, **facts: Any) -> None:
        """Write this rank's file into the checkpoint."""
        if self._own is not None and not args.save_only_model:
            own = {"model": self._own, "optimizer": facts["optimizer"].state_dict()}
            digests = digests_of({"model": facts["model"].state_dict()})
            torch.save(part_of(digests, own), path_of_rank(_folder(args, state)))

    def on_train_end(self, args: Any, state: Any, control: Any, **facts: Any) -> None:
        """Leave the average on all ranks, and the plain optimizer."""
        model, accelerated = facts["model"], facts["optimizer"]
        accelerated.optimizer.synchronize()
        self._show_average(model)
        self._own = None
        accelerated.optimizer, self._plain = self._plain, None
        del model.no_sync

    def _show_average(self, model: nn.Module) -> None:
        if self._own is None and not self._keeps_equal:
            self._own = {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in model.state_dict().items()
            }
            average_model(model, average_buffers=True)


def _folder(args: Any, state: Any) -> Path:
    """Return the path of this step's checkpoint, and of the ranks' files in it."""
    name = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
    return Path(args.output_dir, name, "bluecomm")


def _load_own(path: Path, model: nn.Module) -> dict[str, Any] | None:
    """Return what this rank saved with a checkpoint, unless a rank lacks its file."""
    file = Path(path_of_rank(path))
    load = functools.partial(torch.load, file, weights_only=True)
    digests = digests_of({"model": model.state_dict()})
    return agreed_part(path.parent, digests, load if file.exists() else None)
