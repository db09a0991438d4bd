"""Lightning's ``Trainer`` and ``Fabric`` train as the plain loop does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import bluecomm as bf
from tests.support.lightning_training import (
    EPOCHS,
    data,
    flat,
    lightning_module,
    loader,
    make_optimizers,
    quiet,
    trained_plainly,
    trainer_of,
    two_parts,
)
from tests.support.trainers import run_trainers

pytest.importorskip("lightning")
pytestmark = pytest.mark.mp

RANKS = 2

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
    "bf16-mixed": ({"algorithm": "allreduce"}, {"precision": "bf16-mixed"}),
    "bf16-true": ({"algorithm": "gradient_allreduce"}, {"precision": "bf16-true"}),
    "sync_batchnorm": (
        {"algorithm": "gradient_allreduce"},
        {"sync_batchnorm": True},
    ),
    "exact": ({"algorithm": "exact_diffusion"}, {}),
    "tracking": ({"algorithm": "gradient_tracking"}, {}),
    "local steps": (
        {"algorithm": "local_sgd", "num_steps_per_communication": 3},
        {},
    ),
    "manual": ({"algorithm": "allreduce", "order": "atc"}, {"manual": True}),
    "adversarial gradients": (
        {"algorithm": "gradient_allreduce"},
        {"manual": True, "adversarial": True},
    ),
    "adversarial atc": (
        {"algorithm": "neighbor_allreduce", "order": "atc"},
        {"manual": True, "adversarial": True},
    ),
    "compiled cta": ({"algorithm": "neighbor_allreduce"}, {"compile": True}),
    "compiled gradients": (
        {"algorithm": "gradient_allreduce"},
        {"compile": True, "accumulate": 2},
    ),
    "lbfgs": ({"algorithm": "allreduce", "order": "atc"}, {"optimizer": "lbfgs"}),
}


def compare_trainer(case: str) -> None:
    options, training = CASES[case]
    expected = trained_plainly(options, training)
    module = lightning_module(two_parts(), training)
    trainer = trainer_of(
        options,
        accumulate_grad_batches=training.get("accumulate", 1),
        gradient_clip_val=training.get("clip"),
        precision=training.get("precision"),
        sync_batchnorm=training.get("sync_batchnorm", False),
    )
    with quiet():
        assert trainer.world_size == RANKS
        compiles = training.get("compile", False)
        # This backend runs the captured graphs as they are.
        fitted = torch.compile(module, backend="eager") if compiles else module
        trainer.fit(fitted, loader(data()))
    torch.testing.assert_close(flat(module), expected, rtol=0, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_the_trainer_equals_the_plain_loop(case: str) -> None:
    run_trainers(RANKS, compare_trainer, case)


def compare_fabric(case: str) -> None:
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
        evaluate(module, model)


@torch.no_grad()
def evaluate(module: Any, model: Any) -> None:
    """Check that all ranks evaluate the same model within ``averaged``."""
    module.eval()
    own, losses = flat(model), [float(module.training_loss(one)) for one in data()]
    average = bf.allreduce(own)
    with bf.averaged(module, average_buffers=True):
        torch.testing.assert_close(flat(model), average)
        assert bf.consensus_distance(module) == 0
        common = module.training_loss(bf.broadcast_object(data()[0], 0))
        assert torch.equal(common, bf.broadcast(common, 0))
    assert torch.equal(flat(model), own)
    assert [float(module.training_loss(one)) for one in data()] == losses


@pytest.mark.parametrize(
    "case",
    ["gradients", "cta accumulating", "exact", "bf16-mixed", "bf16-true", "manual"],
)
def test_fabric_equals_the_plain_loop(case: str) -> None:
    run_trainers(RANKS, compare_fabric, case)


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
        assert (
            lightning.Fabric(accelerator="cpu", strategy="bluecomm_push_sum").world_size
            == RANKS
        )


def test_the_launcher_decides_the_number_of_ranks() -> None:
    run_trainers(RANKS, refuse_wrong_numbers)
