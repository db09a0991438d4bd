"""Layers of the models for the benchmark: shapes and multiplications.

The models have only what determines buckets and the time of each layer: residual
additions between layers, pooling and positions of words are left out. The table of
words, which BERT uses at both ends, is the last layer.

Source:
    LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998
    (LeNet-5). He et al., arXiv:1512.03385 (ResNet). Simonyan and Zisserman,
    arXiv:1409.1556, configuration D (VGG-16). Devlin et al., arXiv:1810.04805
    (BERT-base, 109 million parameters).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from bluecomm.bench.sizes import parse_size

# Length of a sample of text.
_TOKENS = 128


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer of a model.

    Attributes:
        make: Creates the module.
        input_shape: Shape of its input without the batch dimension.
        positions: Number of multiplications per weight and sample.
    """

    make: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    positions: int = 1

    def shapes(self) -> list[torch.Size]:
        """Return the shapes of its parameters, without creating them."""
        with torch.device("meta"):
            return [parameter.shape for parameter in self.make().parameters()]

    def multiplications(self) -> int:
        """Return the multiplications of a forward pass per sample."""
        weights = [shape.numel() for shape in self.shapes() if len(shape) > 1]
        return self.positions * sum(weights)


def layers_of(model: str) -> list[Layer]:
    """Return the layers of a model, in the order of a forward pass.

    Raises:
        ValueError: The model is unknown.
    """
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    return MODELS[model]()


def equal_layers(text: str) -> list[Layer]:
    """Return the layers of a text such as ``20x0.25M``: 20 layers of 256 KiB.

    A layer is the largest square float32 matrix of at most that size.

    Raises:
        ValueError: The text is not a number of layers, an ``x`` and a size.
    """
    count, separator, size = text.partition("x")
    if not (separator and count.isdigit() and int(count) > 0):
        raise ValueError(f"layers must be like 20x1M, got {text!r}")
    width = math.isqrt(parse_size(size) // 4)
    if width == 0:
        raise ValueError(f"a layer must have at least 4 bytes, got {text!r}")
    return [_linear(width, width, bias=False) for _ in range(int(count))]


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> Layer:
    return Layer(lambda: nn.Linear(inputs, outputs, bias=bias), (inputs,))


def _convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    size: int,
    *,
    stride: int = 1,
    padding: int | None = None,
    normalized: bool = False,
) -> Layer:
    """Return a convolution on square maps of width ``size``, with its activation."""
    around = kernel // 2 if padding is None else padding

    def make() -> nn.Module:
        modules: list[nn.Module] = [
            nn.Conv2d(inputs, outputs, kernel, stride, around, bias=not normalized)
        ]
        if normalized:
            modules.append(nn.BatchNorm2d(outputs))
        return nn.Sequential(*modules, nn.ReLU(inplace=True))

    width = (size + 2 * around - kernel) // stride + 1
    return Layer(make, (inputs, size, size), width * width)


def _lenet() -> list[Layer]:
    return [
        _convolution(1, 6, 5, 28),
        _convolution(6, 16, 5, 14, padding=0),
        _linear(400, 120),
        _linear(120, 84),
        _linear(84, 10),
    ]


def _vgg16() -> list[Layer]:
    layers, channels, size = [], 3, 224
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers.append(_convolution(channels, width, 3, size))
            channels = width
        size //= 2
    return [*layers, _linear(25088, 4096), _linear(4096, 4096), _linear(4096, 1000)]


def _resnet(blocks: Sequence[int], *, bottleneck: bool) -> list[Layer]:
    layers = [_convolution(3, 64, 7, 224, stride=2, normalized=True)]
    channels, size = 64, 56
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            layers += _residual(channels, width, size, stride, bottleneck)
            channels, size = width * (4 if bottleneck else 1), size // stride
    return [*layers, _linear(channels, 1000)]


def _residual(
    channels: int, width: int, size: int, stride: int, bottleneck: bool
) -> list[Layer]:
    """Return a residual block: kernels 1, 3, 1 or 3, 3, and its shortcut."""
    outputs = 4 * width if bottleneck else width
    after = size // stride
    if bottleneck:
        body = [
            _convolution(channels, width, 1, size, normalized=True),
            _convolution(width, width, 3, size, stride=stride, normalized=True),
            _convolution(width, outputs, 1, after, normalized=True),
        ]
    else:
        body = [
            _convolution(channels, width, 3, size, stride=stride, normalized=True),
            _convolution(width, width, 3, after, normalized=True),
        ]
    if stride == 1 and channels == outputs:
        return body
    shortcut = _convolution(channels, outputs, 1, size, stride=stride, normalized=True)
    return [*body, shortcut]


def _bert_base() -> list[Layer]:
    width, heads, words = 768, 12, 30522
    sample = (_TOKENS, width)

    def make_block() -> nn.Module:
        return nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)

    def make_table() -> nn.Module:
        return nn.Linear(width, words)

    block = Layer(make_block, sample, _TOKENS)
    return [*[block] * 12, Layer(make_table, sample, _TOKENS)]


MODELS: dict[str, Callable[[], list[Layer]]] = {
    "bert_base": _bert_base,
    "lenet": _lenet,
    "resnet18": lambda: _resnet((2, 2, 2, 2), bottleneck=False),
    "resnet50": lambda: _resnet((3, 4, 6, 3), bottleneck=True),
    "vgg16": _vgg16,
}
