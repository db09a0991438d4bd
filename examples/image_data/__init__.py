"""Datasets of images from the files that their authors publish; nothing is downloaded.

They are read here because torchvision has no build for every PyTorch that the examples
run on.
"""

from .cifar import ShiftedAndMirrored, load_cifar10
from .digits import load_digits_28
from .folder import ImageFolder
from .idx import load_mnist, read_idx
from .synthetic import synthetic_images

__all__ = [
    "ImageFolder",
    "ShiftedAndMirrored",
    "load_cifar10",
    "load_digits_28",
    "load_mnist",
    "read_idx",
    "synthetic_images",
]
