"""Shared code of the examples with digits: scikit-learn's data, whole or shared out."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import bluecomm as bf


def load_whole() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the training images and labels, and the test set."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 0.6
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    test, train = order[:360], order[360:]
    return images[train], labels[train], images[test], labels[test]


def load_shard(*, by_class: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return this rank's training images and labels, and the common test set.

    Args:
        by_class: Whether a rank sees only some of the ten digits.
    """
    images, labels, test_images, test_labels = load_whole()
    order = torch.arange(len(labels))
    if by_class:
        order = torch.argsort(labels, stable=True)
    # Shards have equal lengths, so that all ranks take the same number of steps.
    length = len(order) // bf.size()
    shard = order[bf.rank() * length : (bf.rank() + 1) * length]
    return images[shard], labels[shard], test_images, test_labels


def load_batches(batch_size: int) -> tuple[DataLoader, TensorDataset]:
    """Return the batches of this rank's shard, in random order, and the test set."""
    images, labels, test_images, test_labels = load_shard()
    shard = TensorDataset(images, labels)
    batches = DataLoader(shard, batch_size, shuffle=True)
    return batches, TensorDataset(test_images, test_labels)
