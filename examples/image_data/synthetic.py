"""Images without files: noise around a pattern for each class."""

from __future__ import annotations

import torch
from torch import Tensor


def synthetic_images(
    count: int, size: int, num_classes: int, seed: int, channels: int = 3
) -> tuple[Tensor, Tensor]:
    """Return images, ``(count, channels, size, size)``, and labels to be learned."""
    patterns = torch.randn(
        num_classes, channels, 4, 4, generator=torch.Generator().manual_seed(1)
    )
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (count,), generator=generator)
    noise = torch.randn(count, channels, size, size, generator=generator)
    enlarged = torch.nn.functional.interpolate(patterns, size=size)
    return enlarged[labels] + noise, labels
