"""CIFAR-10 in the batches for Python that its authors publish."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

_MEAN = torch.tensor([0.4914, 0.4822, 0.4465])[:, None, None]
_DEVIATION = torch.tensor([0.2470, 0.2435, 0.2616])[:, None, None]
_SHIFT = 4


class _ArraysOnly(pickle.Unpickler):
    """Unpickles only dicts, lists and arrays, since a pickle could run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            if name == "_reconstruct":
                return np.ndarray(0).__reduce__()[0]
        elif (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        elif (module, name) == ("_codecs", "encode"):
            return _latin1
        raise pickle.UnpicklingError(f"a batch must not contain {module}.{name}")


def _latin1(text: str, encoding: str) -> bytes:
    """Return the bytes that Python 2's pickles store as ``encode(text, 'latin1')``."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"expected latin1, got {encoding}")
    return text.encode("latin1")


def load_cifar10(folder: str, *, train: bool) -> tuple[Tensor, Tensor]:
    """Return images, ``(n, 3, 32, 32)`` about zero, and labels.

    Args:
        folder: Folder with ``data_batch_1`` to ``5`` and ``test_batch``, directly or in
            ``cifar-10-batches-py``.
        train: Whether to load the training set instead of the test set.

    Raises:
        FileNotFoundError: A batch is missing.
        ValueError: A batch is malformed.
    """
    inner = Path(folder) / "cifar-10-batches-py"
    root = inner if inner.is_dir() else Path(folder)
    names = [f"data_batch_{i}" for i in range(1, 6)] if train else ["test_batch"]
    batches = [_read(root / name) for name in names]
    images = torch.cat([images for images, _ in batches])
    labels = torch.cat([labels for _, labels in batches])
    return (images.float() / 255 - _MEAN) / _DEVIATION, labels


class ShiftedAndMirrored(Dataset[tuple[Tensor, Tensor]]):
    """Images, randomly shifted by up to four pixels and mirrored.

    Args:
        images: ``(n, channels, height, width)``.
        labels: ``(n,)``.
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images = images
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self._images[index]
        height, width = image.shape[1:]
        top, left = torch.randint(2 * _SHIFT + 1, (2,)).tolist()
        padded = nn.functional.pad(image, [_SHIFT] * 4)
        image = padded[:, top : top + height, left : left + width]
        return image.flip(2) if torch.rand(()) < 0.5 else image, self._labels[index]


def _read(path: Path) -> tuple[Tensor, Tensor]:
    with path.open("rb") as file:
        try:
            batch = _ArraysOnly(file, encoding="bytes").load()
            images = torch.tensor(batch[b"data"].reshape(-1, 3, 32, 32))
            labels = torch.tensor(batch[b"labels"])
        except (pickle.UnpicklingError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a batch of CIFAR-10: {error}") from error
    if len(images) != len(labels):
        raise ValueError(f"{path}: {len(images)} images, {len(labels)} labels")
    return images, labels
