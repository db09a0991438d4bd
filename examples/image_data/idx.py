"""MNIST and similar datasets in IDX files: magic number, sizes, bytes."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_UNSIGNED_BYTE = 8


def read_idx(path: Path) -> Tensor:
    """Return the array of bytes in an IDX file, compressed (``.gz``) or not.

    Raises:
        ValueError: The file is not an IDX file of bytes, or is truncated.
    """
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTE:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes")
    start = 4 + 4 * data[3]
    shape = struct.unpack(f">{data[3]}I", data[4:start].ljust(start - 4, b"\0"))
    expected = int(np.prod(shape))
    if len(data) - start != expected:
        raise ValueError(
            f"{path}: expected {expected} bytes for shape {shape}, got "
            f"{len(data) - start}"
        )
    values = np.frombuffer(data, np.uint8, offset=start).reshape(shape)
    return torch.tensor(values)


def load_mnist(folder: str, *, train: bool) -> tuple[Tensor, Tensor]:
    """Return images, ``(n, 1, 28, 28)`` about zero, and labels.

    Args:
        folder: Folder with ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and
            the ``t10k`` files, each possibly with ``.gz``.
        train: Whether to load the training set instead of the test set.

    Raises:
        FileNotFoundError: One of the files is missing.
        ValueError: One of the files is malformed.
    """
    stem = "train" if train else "t10k"
    images = read_idx(_find(folder, f"{stem}-images", "idx3-ubyte"))
    labels = read_idx(_find(folder, f"{stem}-labels", "idx1-ubyte"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{folder}: {tuple(images.shape)} images do not match "
            f"{tuple(labels.shape)} labels"
        )
    # Mean and deviation of the training images.
    return (images[:, None].float() / 255 - 0.1307) / 0.3081, labels.long()


def _find(folder: str, stem: str, kind: str) -> Path:
    # Some tools replace the dash by a dot when they unpack a file.
    names = [f"{stem}{mark}{kind}{end}" for mark in "-." for end in ("", ".gz")]
    for name in names:
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    raise FileNotFoundError(f"{folder} has none of {', '.join(names)}")
