"""LeNet-5 for 28x28 images of one channel."""

from __future__ import annotations

from torch import Tensor, nn


class LeNet(nn.Module):
    """LeNet-5 with ReLU and max pooling.

    Source:
        LeCun et al., "Gradient-Based Learning Applied to Document Recognition",
        Proceedings of the IEEE, 1998.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, kernel_size=5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(inplace=True),
            nn.Linear(120, 84),
            nn.ReLU(inplace=True),
            nn.Linear(84, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores of ``(n, 1, 28, 28)`` images."""
        return self.classifier(self.features(images).flatten(1))
