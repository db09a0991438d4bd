"""Results of ``compare`` as JSON: losses of trainings, and times on links."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bluecomm.bench.stored import stored

FORMAT = "bluecomm.bench.compare/1"


@dataclasses.dataclass(frozen=True)
class Curve:
    """Validation losses of a training.

    Attributes:
        task: Name of the task.
        contender: Label of the contender.
        seed: Seed of the initial model and of the order of samples.
        link: The network, if the training depends on it; otherwise empty.
        steps: Numbers of steps after which the loss was computed.
        losses: Validation losses of the average of the ranks' models, in nats.
        accuracies: Shares of correct predictions of the same models.
        step_ms: Milliseconds per step of the slowest rank, without validation.
        sent_per_step: Bytes that a rank sent per step, of the rank that sent most.
    """

    task: str
    contender: str
    seed: int
    link: str
    steps: Sequence[int]
    losses: Sequence[float]
    accuracies: Sequence[float]
    step_ms: float
    sent_per_step: float


@dataclasses.dataclass(frozen=True)
class StepCost:
    """Time and bytes per step on a network, with an emulated accelerator.

    Attributes:
        task: Name of the task, whose parameters are sent.
        contender: Label of the contender.
        link: The network.
        step_ms: Milliseconds per step of the slowest rank.
        sent_per_step: Bytes that a rank sent per step, of the rank that sent most.
    """

    task: str
    contender: str
    link: str
    step_ms: float
    sent_per_step: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The results of one or several runs of ``compare``.

    Attributes:
        about: Facts of each run: date, machine, ranks, options.
        curves: The trainings.
        costs: The times on links.
    """

    about: Sequence[Mapping[str, Any]]
    curves: Sequence[Curve]
    costs: Sequence[StepCost]

    def write(self, file: Path) -> None:
        """Write the results as JSON."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        file.write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, file: Path) -> Comparison:
        """Read results that ``write`` has written.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file has no such results.
        """
        with stored(file, FORMAT) as content:
            return cls(
                about=content["about"],
                curves=[Curve(**one) for one in content["curves"]],
                costs=[StepCost(**one) for one in content["costs"]],
            )

    @classmethod
    def joined(cls, parts: Iterable[Comparison]) -> Comparison:
        """Return the results of several runs together."""
        given = list(parts)
        return cls(
            about=[fact for one in given for fact in one.about],
            curves=[curve for one in given for curve in one.curves],
            costs=[cost for one in given for cost in one.costs],
        )
