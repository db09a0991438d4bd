"""Accelerate and Hugging Face's ``Trainer`` train as the plain loop does."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.support.trainers import (
    flat,
    process_group,
    run_trainers,
    training_arguments,
)

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
pytestmark = pytest.mark.mp

RANKS, STEPS = 2, 4

# Options of the algorithm, and of the training.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gradients": ({"algorithm": "gradient_allreduce"}, {}),
    "gradients accumulating": ({"algorithm": "gradient_allreduce"}, {"accumulate": 2}),
    "cta": ({"algorithm": "neighbor_allreduce"}, {}),
    "cta accumulating": ({"algorithm": "neighbor_allreduce"}, {"accumulate": 2}),
    "bf16": ({"algorithm": "neighbor_allreduce"}, {"bf16": True}),
    "exact": ({"algorithm": "exact_diffusion"}, {}),
    "local steps": (
        {"algorithm": "local_sgd", "num_steps_per_communication": 2},
        {},
    ),
}


def train_by_accelerate(folder: str, case: str) -> None:
    from accelerate import Accelerator

    options, training = CASES[case]
    accumulate = training.get("accumulate", 1)
    casts = torch.autocast("cpu", torch.bfloat16, enabled="bf16" in training)

    def train(accelerator: Any) -> torch.Tensor:
        torch.manual_seed(0)
        model: Any = nn.Linear(3, 2)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if accelerator is not None:
            model = accelerator.prepare_model(model, evaluation_mode=True)
        optimizer = given = bf.DistributedOptimizer(optimizer, model, **options)
        generator = torch.Generator().manual_seed(bf.rank())
        batches = [torch.randn(4, 3, generator=generator) for _ in range(STEPS)]
        if accelerator is not None:
            model.no_sync = given.no_sync
            model, optimizer = accelerator.prepare(model, optimizer)
        for step, inputs in enumerate(batches):
            if accelerator is not None:
                with accelerator.accumulate(model):
                    accelerator.backward(model(inputs).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
                continue
            is_last = (step + 1) % accumulate == 0
            with contextlib.nullcontext() if is_last else optimizer.no_sync():
                with casts:
                    outputs = model(inputs)
                (outputs.float().square().mean() / accumulate).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
        given.synchronize()
        return flat(model)

    expected = train(None)
    with process_group(folder, bf.rank(), RANKS):
        accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=accumulate,
            mixed_precision="bf16" if "bf16" in training else None,
        )
        assert accelerator.num_processes == RANKS
        torch.testing.assert_close(train(accelerator), expected, rtol=0, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_accelerate_equals_the_plain_loop(case: str, tmp_path: Path) -> None:
    run_trainers(RANKS, train_by_accelerate, str(tmp_path), case)


def texts_of_steps(accumulate: int = 1) -> list[dict[str, Any]]:
    import hf_text_classification as example

    texts: list[dict[str, Any]] = example.make_texts(
        8 * RANKS * STEPS * accumulate, seed=1
    )
    return texts


def make_model() -> Any:
    """Return a model that differs between ranks."""
    import hf_text_classification as example

    torch.manual_seed(bf.rank())
    model = example.make_model()
    # The Trainer asks for it, and else adds up the losses of accumulated batches.
    model.accepts_loss_kwargs = False
    return model


def trained_plainly(case: str) -> torch.Tensor:
    """Return what ``Trainer.train`` is to leave: the average of the models."""
    options, training = CASES[case]
    accumulate = training.get("accumulate", 1)
    texts = texts_of_steps(accumulate)
    casts = torch.autocast("cpu", torch.bfloat16, enabled="bf16" in training)
    model = make_model()
    bf.broadcast_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bf.DistributedOptimizer(optimizer, model, **options)
    for number in range(STEPS * accumulate):
        # Accelerate gives batch after batch to rank after rank.
        first = 8 * (RANKS * number + bf.rank())
        batch = texts[first : first + 8]
        ids = torch.stack([text["input_ids"] for text in batch])
        labels = torch.tensor([text["labels"] for text in batch])
        is_last = (number + 1) % accumulate == 0
        with contextlib.nullcontext() if is_last else optimizer.no_sync():
            with casts:
                loss = model(input_ids=ids, labels=labels).loss / accumulate
            loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    bf.average_model(model)
    return flat(model)


def trainer_of(options: dict[str, Any], arguments: Any, **more: Any) -> Any:
    """Return a Trainer with the callback."""
    from transformers import Trainer

    from bluecomm.transformers import BluecommCallback

    return Trainer(
        model=make_model(),
        args=arguments,
        callbacks=[BluecommCallback(**options)],
        **more,
    )


def compare_trainer(folder: str, case: str) -> None:
    options, training = CASES[case]
    accumulate = training.get("accumulate", 1)
    expected = trained_plainly(case)
    with process_group(folder, bf.rank(), RANKS):
        trainer = trainer_of(
            options,
            training_arguments(
                folder,
                gradient_accumulation_steps=accumulate,
                bf16=training.get("bf16", False),
            ),
            train_dataset=texts_of_steps(accumulate),
        )
        trainer.train()
        assert trainer.args.world_size == RANKS
        assert trainer.model_wrapped is trainer.model
        assert trainer.state.global_step == STEPS
        torch.testing.assert_close(flat(trainer.model), expected, rtol=0, atol=1e-6)
        assert bf.consensus_distance(trainer.model) == 0
        assert not hasattr(trainer.model, "no_sync")


@pytest.mark.parametrize("case", CASES)
def test_the_trainer_equals_the_plain_loop(case: str, tmp_path: Path) -> None:
    run_trainers(RANKS, compare_trainer, str(tmp_path), case)


def evaluate_save_and_resume(folder: str) -> None:
    from safetensors.torch import load_file

    texts, half = texts_of_steps(), STEPS // 2
    seen: list[torch.Tensor] = []

    def trainer_in(name: str, **settings: Any) -> Any:
        arguments = training_arguments(
            f"{folder}/{name}",
            **{"save_strategy": "steps", "save_steps": half, **settings},
        )

        def look(_: Any) -> dict[str, float]:
            seen.append(flat(trainer.model))
            return {}

        trainer = trainer_of(
            {"algorithm": "exact_diffusion"},
            arguments,
            train_dataset=texts,
            eval_dataset=texts[:8],
            compute_metrics=look,
        )
        return trainer

    with process_group(folder, bf.rank(), RANKS):
        whole = trainer_in("whole", eval_strategy="steps", eval_steps=half)
        whole.train()
        expected = flat(whole.model)
        # Evaluation and checkpoint have the average of that step on all ranks.
        assert len(seen) == 2
        assert all(torch.equal(one, bf.broadcast(one, 0)) for one in seen)
        assert torch.equal(seen[-1], expected)
        path = Path(folder, "whole", f"checkpoint-{half}")
        bf.barrier()
        saved = load_file(path / "model.safetensors")
        names = [name for name, _ in whole.model.named_parameters()]
        assert torch.equal(torch.cat([saved[n].flatten() for n in names]), seen[0])
        assert {p.name for p in path.glob("bluecomm*")} == {
            f"bluecomm.rank-{rank}-of-{RANKS}" for rank in range(RANKS)
        }

        resumed = trainer_in("whole", save_strategy="no")
        resumed.train(resume_from_checkpoint=str(path))
        assert torch.equal(flat(resumed.model), expected)

        # Without the files of the ranks, training continues with the average.
        if bf.rank() == 1:
            (path / f"bluecomm.rank-1-of-{RANKS}").unlink()
        bf.barrier()
        resumed = trainer_in("whole", save_strategy="no")
        resumed.train(resume_from_checkpoint=str(path))
        last = flat(resumed.model)
        assert torch.equal(last, bf.broadcast(last, 0))
        assert not torch.equal(last, expected)
        torch.testing.assert_close(last, expected, rtol=0, atol=0.05)


def test_the_trainer_evaluates_and_saves_the_average_and_resumes(
    tmp_path: Path,
) -> None:
    run_trainers(RANKS, evaluate_save_and_resume, str(tmp_path))


def train_again(folder: str) -> None:
    from transformers import TrainerCallback

    class Failing(TrainerCallback):
        fails = True

        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            if self.fails:
                raise KeyboardInterrupt

    with process_group(folder, bf.rank(), RANKS):
        options = {"algorithm": "exact_diffusion"}
        arguments = training_arguments(folder)
        trainer = trainer_of(options, arguments, train_dataset=texts_of_steps())
        failing = Failing()
        trainer.add_callback(failing)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        failing.fails = False
        # After a failure, and after a success, which leaves a plain optimizer.
        for _ in range(2):
            assert trainer.train().global_step == STEPS
            assert bf.consensus_distance(trainer.model) == 0


def test_training_may_begin_again(tmp_path: Path) -> None:
    run_trainers(RANKS, train_again, str(tmp_path))


def keep_the_best(folder: str) -> None:
    texts = texts_of_steps()
    scores = iter([1.0, 0.0, 0.0, 0.0])
    seen: list[torch.Tensor] = []

    def score(_: Any) -> dict[str, float]:
        seen.append(flat(trainer.model))
        return {"score": next(scores)}

    with process_group(folder, bf.rank(), RANKS):
        trainer = trainer_of(
            {"algorithm": "neighbor_allreduce"},
            training_arguments(
                folder,
                eval_strategy="steps",
                eval_steps=1,
                save_strategy="best",
                metric_for_best_model="score",
                load_best_model_at_end=True,
            ),
            train_dataset=texts,
            eval_dataset=texts[:8],
            compute_metrics=score,
        )
        trainer.train()
        assert len(seen) == STEPS
        assert torch.equal(flat(trainer.model), seen[0])


def test_the_trainer_leaves_the_best_average(tmp_path: Path) -> None:
    run_trainers(RANKS, keep_the_best, str(tmp_path))
