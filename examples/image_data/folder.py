"""A folder of images with a subfolder for each class, as for ImageNet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
_MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
_DEVIATION = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


class ImageFolder(Dataset[tuple[Tensor, Tensor]]):
    """Square images of one size, read on access.

    Args:
        folder: Folder with ``CLASS/IMAGE.jpg``; classes are numbered in alphabetical
            order.
        size: Length of a side in pixels.
        augment: Whether to crop and mirror randomly.

    Raises:
        FileNotFoundError: The folder has no such images.
    """

    def __init__(self, folder: str, size: int, *, augment: bool) -> None:
        root = Path(folder)
        self.classes = sorted(path.name for path in root.iterdir() if path.is_dir())
        self._samples = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((root / name).rglob("*"))
            if path.suffix.lower() in _SUFFIXES
        ]
        if not self._samples:
            raise FileNotFoundError(f"{folder} has no CLASS/IMAGE files")
        self._size = size
        self._augment = augment

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        from PIL import Image

        path, label = self._samples[index]
        with Image.open(path) as image:
            box = self._box(*image.size)
            side = (self._size, self._size)
            cut = image.convert("RGB").resize(side, Image.Resampling.BILINEAR, box)
        pixels = torch.tensor(np.asarray(cut)).permute(2, 0, 1).float() / 255
        if self._augment and torch.rand(()) < 0.5:
            pixels = pixels.flip(2)
        return (pixels - _MEAN) / _DEVIATION, torch.tensor(label)

    def _box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return the square to crop: a random one, or the center."""
        share = 0.875
        left = top = 0.5
        if self._augment:
            share, left, top = torch.rand(3).tolist()
            share = 0.4 + 0.6 * share
        side = share * min(width, height)
        left, top = left * (width - side), top * (height - side)
        return left, top, left + side, top + side
