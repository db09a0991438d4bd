"""scikit-learn's handwritten digits, in the size of MNIST."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_TEST = 360


def load_digits_28(*, train: bool) -> tuple[Tensor, Tensor]:
    """Return images, ``(n, 1, 28, 28)`` about zero, and labels: 1437 or 360."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 0.6
    images = nn.functional.interpolate(small, size=28, mode="bilinear")
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    chosen = order[_TEST:] if train else order[:_TEST]
    return images[chosen], labels[chosen]
