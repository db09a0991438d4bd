"""Shared code of the examples with digits: each rank's shard of scikit-learn's data."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import bluecomm as bf


def load_shard(*, by_class: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return this rank's training images and labels, and the common test set.

    Args:
        by_class: Whether a rank sees only some of the ten digits.
    """
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 0.6
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    test, train = order[:360], order[360:]
    if by_class:
        train = train[torch.argsort(labels[train], stable=True)]
    # Shards have equal lengths, so that all ranks take the same number of steps.
    length = len(train) // bf.size()
    shard = train[bf.rank() * length : (bf.rank() + 1) * length]
    return images[shard], labels[shard], images[test], labels[test]
