"""VGG with 16 layers: a few very large parameters, which test bandwidth.

Source:
    Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
    Recognition", ICLR 2015, arXiv:1409.1556, configuration D.
"""

from __future__ import annotations

from torch import Tensor, nn

# Channels of the 3x3 convolutions of each stage; a 2x2 max pooling ends a stage.
STAGES = [[64, 64], [128, 128], [256, 256, 256], [512, 512, 512], [512, 512, 512]]


class VGG(nn.Module):
    """Stages of 3x3 convolutions and three linear layers, without normalization."""

    def __init__(self, stages: list[list[int]], num_classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in stages:
            for width in stage:
                layers += [
                    nn.Conv2d(channels, width, kernel_size=3, padding=1),
                    nn.ReLU(inplace=True),
                ]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(channels * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, num_classes),
        )
        self._initialize()

    def _initialize(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu"
                )
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores of ``(n, 3, h, w)`` images; h and w at least 32."""
        return self.classifier(self.pool(self.features(images)).flatten(1))


def vgg16(num_classes: int = 1000) -> VGG:
    """Return VGG-16: 138,357,544 parameters for 1000 classes."""
    return VGG(STAGES, num_classes)
