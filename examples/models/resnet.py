"""Residual networks with 18 and 50 layers.

Source:
    He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
    arXiv:1512.03385. As usual today, the 3x3 convolution of a bottleneck
    has the stride.
"""

from __future__ import annotations

from torch import Tensor, nn


def conv_norm(
    channels_in: int, channels_out: int, size: int, stride: int = 1
) -> list[nn.Module]:
    """Return a convolution without bias and the batch normalization after it."""
    return [
        nn.Conv2d(
            channels_in, channels_out, size, stride, padding=size // 2, bias=False
        ),
        nn.BatchNorm2d(channels_out),
    ]


class Residual(nn.Module):
    """``relu(body(x) + shortcut(x))``; the shortcut projects if shapes differ."""

    def __init__(
        self, body: nn.Sequential, channels_in: int, channels_out: int, stride: int
    ) -> None:
        super().__init__()
        self.body = body
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                *conv_norm(channels_in, channels_out, 1, stride)
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of ``channels_out`` channels, ``stride`` times smaller."""
        return self.relu(self.body(x) + self.shortcut(x))


def basic_block(channels_in: int, width: int, stride: int) -> Residual:
    """Return a block of two 3x3 convolutions, with ``width`` output channels."""
    body = nn.Sequential(
        *conv_norm(channels_in, width, 3, stride),
        nn.ReLU(inplace=True),
        *conv_norm(width, width, 3),
    )
    return Residual(body, channels_in, width, stride)


def bottleneck_block(channels_in: int, width: int, stride: int) -> Residual:
    """Return a 1x1, 3x3, 1x1 block, with ``4 * width`` output channels."""
    body = nn.Sequential(
        *conv_norm(channels_in, width, 1),
        nn.ReLU(inplace=True),
        *conv_norm(width, width, 3, stride),
        nn.ReLU(inplace=True),
        *conv_norm(width, 4 * width, 1),
    )
    return Residual(body, channels_in, 4 * width, stride)


class ResNet(nn.Module):
    """Four stages of residual blocks for images of three channels.

    Args:
        blocks: Number of blocks of each stage.
        bottleneck: Use bottleneck blocks, which widen by four, instead of basic blocks.
        num_classes: Number of class scores.
    """

    def __init__(
        self, blocks: list[int], *, bottleneck: bool, num_classes: int = 1000
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *conv_norm(3, 64, 7, stride=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        make_block = bottleneck_block if bottleneck else basic_block
        expansion = 4 if bottleneck else 1
        stages = []
        channels = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            first_stride = 1 if stage == 0 else 2
            for index in range(count):
                stride = first_stride if index == 0 else 1
                stages.append(make_block(channels, width, stride))
                channels = width * expansion
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)
        self._initialize()

    def _initialize(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu"
                )

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores of ``(n, 3, h, w)`` images; h and w at least 32."""
        features = self.pool(self.stages(self.stem(images)))
        return self.classifier(features.flatten(1))


def resnet18(num_classes: int = 1000) -> ResNet:
    """Return ResNet-18: 11,689,512 parameters for 1000 classes."""
    return ResNet([2, 2, 2, 2], bottleneck=False, num_classes=num_classes)


def resnet50(num_classes: int = 1000) -> ResNet:
    """Return ResNet-50: 25,557,032 parameters for 1000 classes."""
    return ResNet([3, 4, 6, 3], bottleneck=True, num_classes=num_classes)
