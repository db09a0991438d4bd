"""Standard image models for the examples, by name.

They are defined here because torchvision has no build for every PyTorch that the
examples run on. Layouts and parameter counts are those of the papers and of
torchvision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from .digits_cnn import DigitsCNN
from .lenet import LeNet
from .resnet import resnet18, resnet50
from .vgg import vgg16

__all__ = [
    "MODELS",
    "DigitsCNN",
    "LeNet",
    "ModelInfo",
    "create_model",
    "resnet18",
    "resnet50",
    "vgg16",
]


@dataclass(frozen=True)
class ModelInfo:
    """A model's constructor and the shape of its input."""

    create: Callable[..., nn.Module]
    input_shape: tuple[int, int, int]  # channels, height, width
    num_classes: int


MODELS = {
    "lenet": ModelInfo(LeNet, (1, 28, 28), 10),
    "digits_cnn": ModelInfo(DigitsCNN, (1, 8, 8), 10),
    "resnet18": ModelInfo(resnet18, (3, 224, 224), 1000),
    "resnet50": ModelInfo(resnet50, (3, 224, 224), 1000),
    "vgg16": ModelInfo(vgg16, (3, 224, 224), 1000),
}


def create_model(name: str, num_classes: int | None = None) -> nn.Module:
    """Return a new model with random weights.

    Args:
        name: One of ``MODELS``.
        num_classes: Number of class scores. Default: the model's own.

    Raises:
        ValueError: ``name`` is not one of ``MODELS``.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; choose from {', '.join(MODELS)}")
    return MODELS[name].create(num_classes or MODELS[name].num_classes)
