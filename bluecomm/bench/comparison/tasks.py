"""The tasks of ``compare``: data that needs no download, a small model, an optimizer.

Both are classifications: of digits, and of the character that comes next. The text is
Python's own help, which comes with Python.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

from bluecomm.bench.training.models import Layer

_LENGTH = 32  # characters of a sample
_VALIDATION = 0.05  # share of the text


@dataclasses.dataclass(frozen=True)
class Data:
    """Samples in tensors whose first dimension counts them.

    Attributes:
        inputs: Inputs of the training set.
        targets: Classes of the training set; one per sample, or one per position of a
            sample.
        test_inputs: Inputs of the validation set.
        test_targets: Classes of the validation set.
        classes: Number of classes.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor
    classes: int


@dataclasses.dataclass(frozen=True)
class TrainingTask:
    """A training that is short enough to be repeated with each algorithm.

    Attributes:
        name: Its name on the command line.
        title: Its name in headings.
        about: Data, model and optimizer, as a sentence of Markdown.
        steps: Steps of each rank.
        batch_size: Samples of a rank's step.
        load: Loads the data.
        make_model: Makes a model for a number of classes.
        make_optimizer: Makes the plain optimizer.
        adam_lr: Rate that suits Adam.
    """

    name: str
    title: str
    about: str
    steps: int
    batch_size: int
    load: Callable[[], Data]
    make_model: Callable[[int], nn.Module]
    make_optimizer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
    adam_lr: float


def load_digits() -> Data:
    """Return scikit-learn's digits, shuffled; 360 of them are for validation."""
    from sklearn import datasets  # type: ignore[import-untyped]

    digits = datasets.load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 0.6
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    test, train = order[:360], order[360:]
    return Data(images[train], labels[train], images[test], labels[test], 10)


def load_characters() -> Data:
    """Return pieces of Python's help; the validation set is its end."""
    from pydoc_data.topics import topics

    text = "".join(topics[name] for name in sorted(topics))
    characters = sorted(set(text))
    number_of = {character: number for number, character in enumerate(characters)}
    numbers = torch.tensor([number_of[character] for character in text])
    pieces = (len(numbers) - 1) // _LENGTH
    inputs = numbers[: pieces * _LENGTH].view(pieces, _LENGTH)
    targets = numbers[1 : pieces * _LENGTH + 1].view(pieces, _LENGTH)
    train = pieces - math.ceil(_VALIDATION * pieces)
    return Data(
        inputs[:train],
        targets[:train],
        inputs[train:],
        targets[train:],
        len(characters),
    )


def make_digits_model(classes: int) -> nn.Module:
    """Return a convolutional network for images of 8 x 8 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


class CharacterModel(nn.Module):
    """A transformer that predicts the next character at each position."""

    def __init__(self, classes: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(classes, width)
        self.positions = nn.Parameter(0.02 * torch.randn(_LENGTH, width))
        block = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, classes)
        mask = nn.Transformer.generate_square_subsequent_mask(_LENGTH)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return scores; shape ``(samples, positions, classes)``."""
        x = self.characters(text) + self.positions
        scores: torch.Tensor = self.scores(
            self.blocks(x, mask=self.mask, is_causal=True)
        )
        return scores


def loss_of(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy, in nats."""
    return nn.functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


def layers_of(model: nn.Module) -> list[Layer]:
    """Return the layers of a model for an emulated accelerator, in order of use."""
    found = []
    for module in model.modules():
        shapes = [one.shape for one in module.parameters(recurse=False)]
        if shapes:
            found.append(Layer(lambda shapes=shapes: _Parameters(shapes), ()))  # type: ignore[misc]
    return found


class _Parameters(nn.Module):
    def __init__(self, shapes: Iterable[torch.Size]) -> None:
        super().__init__()
        self.values = nn.ParameterList(nn.Parameter(torch.empty(s)) for s in shapes)


TASKS = {
    task.name: task
    for task in (
        TrainingTask(
            "digits",
            "Digits",
            "scikit-learn's digits (1,437 for training, 360 for validation), a small "
            "convolutional network, SGD with momentum 0.9.",
            steps=240,
            batch_size=16,
            load=load_digits,
            make_model=make_digits_model,
            make_optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
            adam_lr=2.5e-3,
        ),
        TrainingTask(
            "characters",
            "Characters",
            "Python's own help (`pydoc_data.topics`), a transformer of two layers that "
            "predicts the next character, AdamW.",
            steps=600,
            batch_size=16,
            load=load_characters,
            make_model=CharacterModel,
            make_optimizer=lambda p: torch.optim.AdamW(p, lr=3e-3, weight_decay=0.01),
            adam_lr=3e-3,
        ),
    )
}
