"""Shared code of the examples that classify: training, evaluation and report."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable

import torch
from torch import Tensor, nn

import bluecomm as bf
from bfrun.wording import count


def batches_of(
    images: Tensor, labels: Tensor, batch_size: int
) -> Iterable[tuple[Tensor, Tensor]]:
    """Return the samples in random order, in batches."""
    for batch in torch.randperm(len(labels)).split(batch_size):
        yield images[batch], labels[batch]


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> float:
    """Train on every batch, and return this rank's mean loss.

    Args:
        model: Returns class scores.
        optimizer: Takes a step for each batch.
        batches: Images and labels.
        scheduler: Takes a step for each batch, if given.
    """
    model.train()
    total = count = 0.0
    for images, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        total += float(loss.detach()) * len(labels)
        count += len(labels)
    return total / max(count, 1.0)


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that this rank's model classifies correctly."""
    model.eval()
    return float((model(images).argmax(1) == labels).float().mean())


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]
) -> tuple[float, float]:
    """Return the mean loss and the accuracy over the batches of all ranks.

    Every rank has its own share of the samples, and must call this.
    """
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    for images, labels in batches:
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels, reduction="sum")
        right = (scores.argmax(1) == labels).sum()
        sums += torch.tensor([float(loss), float(right), len(labels)]).double()
    loss, right, count = bf.allreduce(sums, op=bf.Sum, name="evaluation").tolist()
    return loss / max(count, 1.0), right / max(count, 1.0)


def report(args: argparse.Namespace, model: nn.Module, averaged: float) -> None:
    """Print the accuracy of the averaged model, and write ``--json``. Collective."""
    result = {
        "dist_optimizer": args.dist_optimizer,
        "ranks": bf.size(),
        "averaged_model_accuracy": averaged,
        "consensus_distance": bf.consensus_distance(model),
    }
    if bf.rank() == 0:
        ranks = count(bf.size(), "rank")
        print(f"test accuracy of the average of {ranks}: {100 * averaged:.1f} %")
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=2)
