"""A small CNN for the 8x8 digits that scikit-learn ships."""

from __future__ import annotations

from torch import Tensor, nn


class DigitsCNN(nn.Module):
    """Two convolutions and two linear layers; 38,282 parameters, no buffers.

    It has no batch normalization, whose statistics would stay different on ranks with
    different classes.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(inplace=True),
            nn.Linear(64, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores of ``(n, 1, 8, 8)`` images."""
        return self.classifier(self.features(images).flatten(1))
