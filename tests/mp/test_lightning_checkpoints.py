"""Checkpoints of ``Trainer`` and ``Fabric``: the average, and a file per rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import bluecomm as bf
from tests.support.lightning_training import (
    BATCHES,
    Resumable,
    data,
    flat,
    lightning_module,
    loader,
    loss_of,
    make_optimizers,
    quiet,
    trainer_of,
    two_parts,
)
from tests.support.trainers import run_trainers

pytest.importorskip("lightning")
pytestmark = pytest.mark.mp

RANKS = 2
# It keeps tensors that differ between ranks.
OPTIONS = {"algorithm": "exact_diffusion"}


class Crash(Exception):
    """Ends a training."""


def fit(
    folder: str,
    epochs: int,
    batches: Any = None,
    every_n_train_steps: int | None = None,
    crashes_in_step: int | None = None,
    **more: Any,
) -> tuple[Any, Any]:
    """Train and save checkpoints, and return the module and the Trainer."""
    import lightning

    saving = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=folder,
        filename="{step}" if every_n_train_steps else "{epoch}",
        save_top_k=1,
        monitor="step",
        mode="max",
        every_n_train_steps=every_n_train_steps,
    )

    class Crashing(lightning.pytorch.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == crashes_in_step:
                raise Crash

    module = lightning_module(two_parts(), {})
    trainer = trainer_of(
        OPTIONS,
        max_epochs=epochs,
        enable_checkpointing=True,
        callbacks=[saving, Crashing()],
    )
    batches = loader(data()) if batches is None else batches
    trainer.fit(module, batches, loader(data()), **more)
    return module, trainer


def evaluate_and_save(folder: str) -> None:
    with quiet():
        whole, trainer = fit(folder, 2)
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
        fit(folder, 1)
        path = f"{folder}/epoch=0.ckpt"
        saved = torch.load(path, weights_only=False)["state_dict"]
        resumed, _ = fit(folder, 2, ckpt_path=path)
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
    run_trainers(RANKS, evaluate_and_save, str(tmp_path))


def resume_after_a_crash(folder: str) -> None:
    with quiet():
        whole, _ = fit(f"{folder}/whole", 2, Resumable(), every_n_train_steps=1)
        steps = BATCHES + BATCHES // 2
        with pytest.raises(Crash):
            fit(
                f"{folder}/crashed",
                *(2, Resumable()),
                every_n_train_steps=1,
                crashes_in_step=steps,
            )
        bf.barrier()
        resumed, trainer = fit(
            f"{folder}/crashed",
            *(2, Resumable()),
            every_n_train_steps=1,
            ckpt_path=f"{folder}/crashed/step={steps}.ckpt",
        )
        assert trainer.global_step == 2 * BATCHES
        torch.testing.assert_close(flat(resumed), flat(whole), rtol=0, atol=0)


def test_training_resumes_after_a_crash_within_an_epoch(tmp_path: Path) -> None:
    run_trainers(RANKS, resume_after_a_crash, str(tmp_path))


def save_and_load_by_fabric(folder: str) -> None:
    import lightning

    import bluecomm.lightning

    path = f"{folder}/state"
    fabric = lightning.Fabric(
        accelerator="cpu",
        strategy=bluecomm.lightning.BluecommFabricStrategy(**OPTIONS),
    )
    fabric.launch()

    def setup() -> tuple[Any, Any, Any]:
        model = two_parts()
        (plain,) = make_optimizers(model)
        module = lightning_module(model, {})
        module, optimizer = fabric.setup(module, plain)
        module.mark_forward_method("training_loss")
        return model, module, optimizer

    def train(module: Any, optimizer: Any) -> None:
        for batch in data():
            fabric.backward(module.training_loss(batch))
            optimizer.step()
            optimizer.zero_grad()

    with quiet():
        model, module, optimizer = setup()
        train(module, optimizer)
        fabric.save(path, {"model": module, "optimizer": optimizer, "epoch": 1})
        fabric.save(f"{folder}/weights", {"model": module})
        own = flat(model)
        train(module, optimizer)
        expected = flat(model)

        model, module, optimizer = setup()
        state = {"model": module, "optimizer": optimizer, "epoch": 0}
        assert fabric.load(path, state) == {}
        assert state["epoch"] == 1
        assert torch.equal(flat(model), own)
        train(module, optimizer)
        torch.testing.assert_close(flat(model), expected, rtol=0, atol=0)

        # One of the two parts that the ranks' files have.
        model, module, optimizer = setup()
        fabric.load(path, {"model": module})
        assert bf.consensus_distance(model) == 0
        fabric.load(path, {"optimizer": optimizer})
        fabric.load(path, {"model": module, "optimizer": optimizer})
        assert torch.equal(flat(model), own)

        # Weights alone are the average, and so is all if a rank lacks its file.
        average = bf.allreduce(own)
        fabric.load(f"{folder}/weights", {"model": module})
        torch.testing.assert_close(flat(model), average)
        assert bf.consensus_distance(model) == 0
        if bf.rank() == 1:
            Path(f"{path}.rank-1-of-2").unlink()
        fabric.load(path, {"model": module, "optimizer": optimizer})
        torch.testing.assert_close(flat(model), average)
        assert torch.isfinite(loss_of(model, data()[0]))
        names = sorted(path.name for path in Path(folder).iterdir())
        assert names == ["state", "state.rank-0-of-2", "weights"]


def test_fabric_continues_exactly(tmp_path: Path) -> None:
    run_trainers(RANKS, save_and_load_by_fabric, str(tmp_path))
