"""A small training by Lightning's ``Trainer``, and the same one by a plain loop."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import bluecomm as bf

BATCHES, EPOCHS = 4, 2
Batch = tuple[torch.Tensor, torch.Tensor]


def data() -> list[Batch]:
    """Return this rank's batches."""
    generator = torch.Generator().manual_seed(7 + bf.rank())
    inputs = torch.randn(BATCHES, 8, 4, generator=generator)
    batches = [(x, x.sum(1, keepdim=True) + bf.rank()) for x in inputs]
    # Fabric rounds inputs and targets for mixed precision, the Trainer does not.
    return [(x.bfloat16().float(), y.bfloat16().float()) for x, y in batches]


class Resumable:
    """Yields this rank's batches, and continues after those it had yielded."""

    def __init__(self) -> None:
        self._yielded = 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[Batch]:
        batches, first = data(), self._yielded % BATCHES
        for number in range(first, BATCHES):
            self._yielded = number + 1
            yield batches[number]

    def state_dict(self) -> dict[str, int]:
        """Return how many batches it has yielded."""
        return {"yielded": self._yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a state."""
        self._yielded = state["yielded"]


def two_parts() -> Any:
    """Return a model that differs between ranks."""
    torch.manual_seed(bf.rank())
    return nn.ModuleDict(
        {
            "first": nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh()),
            "last": nn.Linear(8, 1),
        }
    )


def loss_of(model: Any, batch: Batch) -> torch.Tensor:
    return nn.functional.mse_loss(model["last"](model["first"](batch[0])), batch[1])


def loss_of_first(model: Any, batch: Batch) -> torch.Tensor:
    return -model["last"](model["first"](batch[0])).tanh().mean()


def loss_of_last(model: Any, batch: Batch) -> torch.Tensor:
    hidden = model["first"](batch[0]).detach()
    return nn.functional.mse_loss(model["last"](hidden), batch[1])


# The parts take turns, as in a GAN.
ADVERSARIAL = {"first": loss_of_first, "last": loss_of_last}


def make_optimizers(
    model: Any, optimizer: str = "sgd", manual: bool = False, **_: Any
) -> list[torch.optim.Optimizer]:
    """Return one optimizer, or one for each part."""
    parts = [model["first"], model["last"]] if manual else [model]
    make = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
        "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=2),
    }[optimizer]
    return [make(part.parameters()) for part in parts]


def lightning_module(model: nn.Module, training: dict[str, Any]) -> Any:
    """Return a module for Lightning."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.automatic_optimization = not training.get("manual", False)
            self.seen: list[torch.Tensor] = []

        def training_loss(self, batch: Any) -> torch.Tensor:
            return loss_of(self.model, batch)

        def training_step(self, batch: Any, _: int) -> torch.Tensor | None:
            if training.get("adversarial"):
                losses = ADVERSARIAL.values()
                for optimizer, loss in zip(self.optimizers(), losses, strict=True):
                    self.toggle_optimizer(optimizer)
                    self.manual_backward(loss(self.model, batch))
                    optimizer.step()
                    optimizer.zero_grad()
                    self.untoggle_optimizer(optimizer)
                return None
            loss = loss_of(self.model, batch)
            if not self.automatic_optimization:
                for optimizer in self.optimizers():
                    optimizer.zero_grad()
                self.manual_backward(loss)
                for optimizer in self.optimizers():
                    optimizer.step()
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.seen.append(flat(self.model))
            self.log("loss", loss_of(self.model, batch), sync_dist=True)

        test_step = validation_step

        def configure_optimizers(self) -> Any:
            optimizers = make_optimizers(self.model, **training)
            return optimizers, [
                torch.optim.lr_scheduler.StepLR(one, 1) for one in optimizers
            ]

        def on_train_epoch_end(self) -> None:
            if not self.automatic_optimization:
                for scheduler in self.lr_schedulers():
                    scheduler.step()

    return Module()


def flat(model: nn.Module) -> torch.Tensor:
    """Return a copy of all parameters as one vector."""
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide Lightning's hints, and end torch's process group."""
    logging.getLogger("lightning").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def trainer_of(options: dict[str, Any], **settings: Any) -> Any:
    """Return a Trainer with the strategy."""
    import lightning

    from bluecomm.lightning import BluecommStrategy

    return lightning.Trainer(
        **{
            "accelerator": "cpu",
            "strategy": BluecommStrategy(**options),
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "use_distributed_sampler": False,
            "max_epochs": EPOCHS,
            **settings,
        }
    )


def loader(batches: list[Batch]) -> Any:
    return torch.utils.data.DataLoader(batches, batch_size=None)


def trained_plainly(options: dict[str, Any], training: dict[str, Any]) -> torch.Tensor:
    """Return the parameters after the plain loop."""
    model = two_parts()
    bf.broadcast_parameters(model)
    plain = make_optimizers(model, **training)
    if training.get("sync_batchnorm"):
        bf.SyncBatchNorm.convert_sync_batchnorm(model)
    precision = training.get("precision")
    if precision == "bf16-true":
        model.to(torch.bfloat16)
    optimizers = [bf.DistributedOptimizer(one, model, **options) for one in plain]
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 1) for one in plain]
    accumulate = training.get("accumulate", 1)
    casts = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed")

    def backward(batch: Any) -> torch.Tensor:
        with casts:
            loss = _whole_step(model, loss_of, batch) / accumulate
        for optimizer in optimizers:
            optimizer.zero_grad() if accumulate == 1 else None
        loss.backward()
        return loss

    def train(number: int, batch: Any) -> None:
        if training.get("adversarial"):
            _whole_step(model, _take_turns, batch, optimizers)
            return
        if training.get("optimizer") == "lbfgs":
            optimizers[0].step(lambda: backward(batch))
            return
        with contextlib.ExitStack() as stack:
            if (number + 1) % accumulate:
                stack.enter_context(optimizers[0].no_sync())
            backward(batch)
        if (number + 1) % accumulate == 0:
            if clip := training.get("clip"):
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad() if accumulate > 1 else None

    for _ in range(EPOCHS):
        for number, batch in enumerate(data()):
            if precision == "bf16-true":
                batch = tuple(x.to(torch.bfloat16) for x in batch)
            train(number, batch)
        for scheduler in schedulers:
            scheduler.step()
    for optimizer in optimizers:
        optimizer.synchronize()
    return flat(model)


def _whole_step(
    model: Any, step: Callable[..., torch.Tensor], *args: Any
) -> torch.Tensor:
    """Run a step as the forward pass of the model, whose hooks the parts do not run."""
    model.forward = lambda *args: step(model, *args)
    result: torch.Tensor = model(*args)
    return result


def _take_turns(model: Any, batch: Any, optimizers: list[Any]) -> None:
    for (part, loss), optimizer in zip(ADVERSARIAL.items(), optimizers, strict=True):
        for name in model:
            model[name].requires_grad_(name == part)
        loss(model, batch).backward()
        optimizer.step()
        optimizer.synchronize()
        optimizer.zero_grad()
    model.requires_grad_(True)
