"""Data that all ranks and the test share, for comparing with plain arithmetic."""

from __future__ import annotations

import zlib

import torch

# Empty, scalar, and smaller and larger than an eager message and than a chunk.
SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (3, 0), (2, 3, 5), (5000,), (300_001,)]


def stacked(
    shape: tuple[int, ...], world_size: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return ``(world_size, *shape)`` random numbers, equal in every process.

    Floating-point numbers are standard normal; integers are in -5 .. 5 (0 .. 5 for
    unsigned ones).
    """
    seed = zlib.crc32(repr((shape, world_size)).encode())
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((world_size, *shape), generator=generator, dtype=torch.float64)
    if dtype.is_floating_point:
        return x.to(dtype)
    x = (3 * x).round().clamp(-5, 5)
    return (x.abs() if dtype in (torch.uint8, torch.bool) else x).to(dtype)
