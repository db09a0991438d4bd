"""Accelerate and Hugging Face's ``Trainer`` train as the plain loop does."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm_autoload import register
from tests.support.ranks import run_ranks

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
pytestmark = pytest.mark.mp

RANKS, STEPS = 2, 4
NAMES = ["gradient_allreduce", "neighbor_allreduce", "exact_diffusion", "local_sgd"]


def options_of(name: str) -> argparse.Namespace:
    return argparse.Namespace(
        dist_optimizer=name,
        atc_style=False,
        local_steps=2 if name == "local_sgd" else None,
        disable_dynamic_topology=False,
    )


@contextlib.contextmanager
def process_group(folder: str) -> Iterator[None]:
    """Make torch's default group; the trainers look at variables of ``env://``."""
    register()
    told = {
        "RANK": str(bf.rank()),
        "LOCAL_RANK": str(bf.local_rank()),
        "WORLD_SIZE": str(bf.size()),
        "LOCAL_WORLD_SIZE": str(bf.local_size()),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    os.environ.update(told)
    for name in ("transformers", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.distributed.init_process_group(
        "bluecomm",
        init_method=f"file://{folder}/store",
        rank=bf.rank(),
        world_size=bf.size(),
    )
    from accelerate.state import AcceleratorState

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        AcceleratorState._reset_state(True)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        for key in told:
            del os.environ[key]


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def train_by_accelerate(folder: str, name: str, accumulate: int) -> None:
    from accelerate import Accelerator

    from dist_optimizer import distribute

    def train(accelerator: Any) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = given = distribute(optimizer, model, options_of(name))
        generator = torch.Generator().manual_seed(bf.rank())
        if accelerator is not None:
            optimizer = accelerator.prepare(optimizer)
        for step in range(STEPS):
            inputs = torch.randn(4, 3, generator=generator)
            is_last = (step + 1) % accumulate == 0
            if accelerator is None:
                loss = model(inputs).square().mean() / accumulate
                with contextlib.nullcontext() if is_last else optimizer.no_sync():
                    loss.backward()
                if is_last:
                    optimizer.step()
                    optimizer.zero_grad()
                continue
            blocked = contextlib.nullcontext() if is_last else given.no_sync()
            with accelerator.accumulate(model), blocked:
                accelerator.backward(model(inputs).square().mean())
                optimizer.step()
                optimizer.zero_grad()
        given.synchronize()
        return flat(model)

    expected = train(None)
    with process_group(folder):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        assert accelerator.num_processes == RANKS
        torch.testing.assert_close(train(accelerator), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_accelerate_equals_the_plain_loop(name: str, tmp_path: Any) -> None:
    accumulate = 2 if name == "gradient_allreduce" else 1
    run_ranks(RANKS, train_by_accelerate, str(tmp_path), name, accumulate)


def train_by_hugging_face(folder: str, name: str) -> None:
    from transformers import TrainingArguments

    import hf_text_classification as example
    from dist_optimizer import distribute

    texts = example.make_texts(8 * RANKS * STEPS, seed=1)
    options = options_of(name)
    torch.manual_seed(0)
    model = example.make_model()
    bf.broadcast_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = distribute(optimizer, model, options)
    for step in range(STEPS):
        # Accelerate gives batch after batch to rank after rank.
        first = 8 * (RANKS * step + bf.rank())
        batch = texts[first : first + 8]
        ids = torch.stack([text["input_ids"] for text in batch])
        labels = torch.tensor([text["labels"] for text in batch])
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.synchronize()
    expected = flat(model)
    with process_group(folder):
        torch.manual_seed(0)
        trainer = example.BluecommTrainer(
            options,
            model=example.make_model(),
            args=TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                num_train_epochs=1,
                per_device_train_batch_size=8,
                learning_rate=0.1,
                lr_scheduler_type="constant",
                optim="sgd",
                max_grad_norm=0.0,
                average_tokens_across_devices=False,
                train_sampling_strategy="sequential",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=texts,
        )
        trainer.train()
        assert trainer.args.world_size == RANKS
        assert trainer.model_wrapped is trainer.model
        trainer.optimizer.optimizer.synchronize()
        torch.testing.assert_close(flat(trainer.model), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_hugging_face_equals_the_plain_loop(name: str, tmp_path: Any) -> None:
    run_ranks(RANKS, train_by_hugging_face, str(tmp_path), name)
