"""Lightning's ``Trainer`` and ``Fabric`` train as the plain loop does."""

from __future__ import annotations

import contextlib
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.support.ranks import run_ranks

pytest.importorskip("lightning")
pytestmark = pytest.mark.mp

RANKS, BATCHES, EPOCHS = 2, 4, 2

# Options of the algorithm, and of the training.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gradients": (
        {"algorithm": "gradient_allreduce"},
        {"accumulate": 2, "clip": 0.5},
    ),
    "cta": ({"algorithm": "neighbor_allreduce"}, {}),
    "cta accumulating": (
        {"algorithm": "neighbor_allreduce"},
        {"accumulate": 2, "clip": 0.5},
    ),
    "atc": ({"algorithm": "allreduce", "order": "atc"}, {"optimizer": "adam"}),
    "bfloat16": ({"algorithm": "allreduce"}, {"precision": "bf16-mixed"}),
    "exact": ({"algorithm": "exact_diffusion"}, {}),
    "tracking": ({"algorithm": "gradient_tracking"}, {}),
    "local steps": (
        {"algorithm": "local_sgd", "num_steps_per_communication": 3},
        {},
    ),
    "manual": ({"algorithm": "allreduce", "order": "atc"}, {"manual": True}),
    "lbfgs": ({"algorithm": "allreduce", "order": "atc"}, {"optimizer": "lbfgs"}),
}


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return this rank's batches."""
    generator = torch.Generator().manual_seed(7 + bf.rank())
    inputs = torch.randn(BATCHES, 8, 4, generator=generator)
    return [(x, x.sum(1, keepdim=True) + bf.rank()) for x in inputs]


def two_parts() -> nn.Module:
    """Return a model that differs between ranks."""
    torch.manual_seed(bf.rank())
    return nn.ModuleDict(
        {
            "first": nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh()),
            "last": nn.Linear(8, 1),
        }
    )


def loss_of(model: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(model["last"](model["first"](batch[0])), batch[1])


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

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
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
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


@contextlib.contextmanager
def quiet() -> Any:
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


def loader(batches: list[Any]) -> Any:
    return torch.utils.data.DataLoader(batches, batch_size=None)


def trained_plainly(options: dict[str, Any], training: dict[str, Any]) -> torch.Tensor:
    """Return the parameters after the plain loop."""
    model = two_parts()
    bf.broadcast_parameters(model)
    plain = make_optimizers(model, **training)
    optimizers = [bf.DistributedOptimizer(one, model, **options) for one in plain]
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 1) for one in plain]
    accumulate = training.get("accumulate", 1)
    casts = torch.autocast(
        "cpu", torch.bfloat16, enabled=training.get("precision") == "bf16-mixed"
    )

    def backward(batch: Any) -> torch.Tensor:
        # The hook of the root module, which the parts do not call.
        with casts:
            loss = Whole.apply(model, batch) / accumulate
        for optimizer in optimizers:
            optimizer.zero_grad() if accumulate == 1 else None
        loss.backward()
        return loss

    for _ in range(EPOCHS):
        for i, batch in enumerate(data()):
            if training.get("optimizer") == "lbfgs":
                optimizers[0].step(lambda batch=batch: backward(batch))
                continue
            with contextlib.ExitStack() as stack:
                if (i + 1) % accumulate:
                    stack.enter_context(optimizers[0].no_sync())
                backward(batch)
            if (i + 1) % accumulate == 0:
                if clip := training.get("clip"):
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad() if accumulate > 1 else None
        for scheduler in schedulers:
            scheduler.step()
    for optimizer in optimizers:
        optimizer.synchronize()
    return flat(model)


class Whole:
    """Runs the model's forward hooks, and then its loss."""

    @staticmethod
    def apply(model: nn.Module, batch: Any) -> torch.Tensor:
        model.forward = lambda batch: loss_of(model, batch)
        loss: torch.Tensor = model(batch)
        return loss


def compare_trainer(case: str) -> None:
    options, training = CASES[case]
    expected = trained_plainly(options, training)
    module = lightning_module(two_parts(), training)
    trainer = trainer_of(
        options,
        accumulate_grad_batches=training.get("accumulate", 1),
        gradient_clip_val=training.get("clip"),
        precision=training.get("precision"),
    )
    with quiet():
        assert trainer.world_size == RANKS
        trainer.fit(module, loader(data()))
    torch.testing.assert_close(flat(module), expected, rtol=0, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_the_trainer_equals_the_plain_loop(case: str) -> None:
    run_ranks(RANKS, compare_trainer, case)


def evaluate_and_save(folder: str) -> None:
    """Check that the average is validated, tested and saved, and training resumes."""
    import lightning

    options, training = CASES["exact"]

    def fit(epochs: int, **more: Any) -> tuple[Any, Any]:
        saving = lightning.pytorch.callbacks.ModelCheckpoint(
            dirpath=folder, filename="{epoch}", save_top_k=1, monitor="step", mode="max"
        )
        module = lightning_module(two_parts(), training)
        settings = {"enable_checkpointing": True, "callbacks": [saving]}
        trainer = trainer_of(options, max_epochs=epochs, **settings)
        trainer.fit(module, loader(data()), loader(data()), **more)
        return module, trainer

    with quiet():
        whole, trainer = fit(2)
        assert float(bf.consensus_distance(whole)) > 0
        # All ranks have seen the same model, which is none of their own.
        last = whole.seen[-1]
        assert torch.equal(last, bf.broadcast(last, 0))
        average = bf.allreduce(flat(whole))
        torch.testing.assert_close(last, average)
        trainer.test(whole, loader(data()), verbose=False)
        torch.testing.assert_close(whole.seen[-1], average)
        own = flat(whole)

        for path in Path(folder).glob(f"*-{bf.rank()}-of-*"):
            path.unlink()
        bf.barrier()
        fit(1)
        path = f"{folder}/epoch=0.ckpt"
        saved = torch.load(path, weights_only=False)["state_dict"]
        resumed, _ = fit(2, ckpt_path=path)
        torch.testing.assert_close(flat(resumed), own, rtol=0, atol=0)
        # ModelCheckpoint has removed the older one, with the files of the ranks.
        bf.barrier()
        names = sorted(p.name for p in Path(folder).iterdir())
        assert [n for n in names if "of-2" in n], names
        weights = [saved[name] for name, _ in whole.named_parameters()]
        assert all(torch.equal(w, bf.broadcast(w, 0)) for w in weights)


def test_the_average_is_evaluated_and_saved_and_training_resumes(
    tmp_path: Path,
) -> None:
    run_ranks(RANKS, evaluate_and_save, str(tmp_path))


def compare_fabric(case: str, folder: str) -> None:
    import lightning

    import bluecomm.lightning

    options, training = CASES[case]
    expected = trained_plainly(options, training)
    accumulate = training.get("accumulate", 1)
    with quiet():
        strategy = bluecomm.lightning.BluecommFabricStrategy(**options)
        precision = training.get("precision")
        fabric = lightning.Fabric(
            accelerator="cpu", strategy=strategy, precision=precision
        )
        fabric.launch()
        model = two_parts()
        plain = make_optimizers(model, **training)
        module = lightning_module(model, training)
        module, *optimizers = fabric.setup(module, *plain)
        module.mark_forward_method("training_loss")
        schedulers = [torch.optim.lr_scheduler.StepLR(one, 1) for one in plain]
        for _ in range(EPOCHS):
            for i, batch in enumerate(data()):
                waits = (i + 1) % accumulate != 0
                with fabric.no_backward_sync(module, enabled=waits):
                    fabric.backward(module.training_loss(batch) / accumulate)
                if waits:
                    continue
                if clip := training.get("clip"):
                    fabric.clip_gradients(module, optimizers[0], max_norm=clip)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            for scheduler in schedulers:
                scheduler.step()
        for optimizer in optimizers:
            optimizer.synchronize()
        torch.testing.assert_close(flat(model), expected, rtol=0, atol=0)
        fabric.save(f"{folder}/state", {"model": module, "optimizer": optimizers[0]})
        fabric.load(f"{folder}/state", {"model": module, "optimizer": optimizers[0]})
        assert float(bf.consensus_distance(model)) == 0


@pytest.mark.parametrize("case", ["gradients", "cta accumulating", "exact"])
def test_fabric_equals_the_plain_loop(case: str, tmp_path: Path) -> None:
    run_ranks(RANKS, compare_fabric, case, str(tmp_path))


def refuse_wrong_numbers() -> None:
    with quiet():
        with pytest.raises(ValueError, match="devices=3, but the launcher has started"):
            trainer_of({}, devices=3)
        with pytest.raises(ValueError, match="num_nodes=2, but"):
            trainer_of({}, num_nodes=2)
        import lightning

        import bluecomm.lightning  # noqa: F401

        named = lightning.Trainer(
            accelerator="cpu", strategy="bluecomm_exact_diffusion", logger=False
        )
        assert named.world_size == RANKS
        assert named.num_devices == RANKS


def test_the_launcher_decides_the_number_of_ranks() -> None:
    run_ranks(RANKS, refuse_wrong_numbers)
