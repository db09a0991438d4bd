"""Puts losses and times on links together: one line per algorithm and length."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from bluecomm.bench.comparison.results import Comparison, Curve, StepCost
from bluecomm.bench.comparison.tasks import TASKS, TrainingTask

# The algorithm whose final loss the others are compared with.
REFERENCE = "gradient_allreduce"
# A loss counts as reached if it is at most this much above the reference's.
_TOLERANCE = 0.02


@dataclasses.dataclass(frozen=True)
class Line:
    """One algorithm on one task.

    Attributes:
        contender: Its label.
        steps: Numbers of steps after which the loss was computed.
        losses: Losses at these steps, by network; means over the seeds. The key is
            empty if the training does not depend on the network.
        accuracy: Share of correct predictions at the end, mean over seeds and networks.
        step_ms: Milliseconds per step, by network.
        sent_per_step: Bytes that a rank sent per step of the training.
    """

    contender: str
    steps: Sequence[int]
    losses: Mapping[str, Sequence[float]]
    accuracy: float
    step_ms: Mapping[str, float]
    sent_per_step: float

    def losses_on(self, link: str) -> Sequence[float] | None:
        """Return the losses of a training on a network, if there is one."""
        return self.losses.get(link, self.losses.get(""))

    @property
    def final_loss(self) -> float:
        """Loss at the end, mean over the networks."""
        return statistics.mean(losses[-1] for losses in self.losses.values())

    def seconds_to(self, loss: float, link: str) -> float | None:
        """Return the seconds on a network until a loss is reached; None if never."""
        losses, step_ms = self.losses_on(link), self.step_ms.get(link)
        if losses is None or step_ms is None:
            return None
        for steps, reached in zip(self.steps, losses, strict=True):
            if reached <= loss:
                return 1e-3 * step_ms * steps
        return None


def links_of(found: Comparison) -> list[str]:
    """Return the names of the networks, in the order of the runs."""
    named = [cost.link for cost in found.costs]
    named += [curve.link for curve in found.curves if curve.link]
    return list(dict.fromkeys(named))


@dataclasses.dataclass(frozen=True)
class Section:
    """The trainings on one task that took the same number of steps.

    Attributes:
        task: The task.
        steps: Number of steps of each rank.
        lines: A line for each algorithm, best loss first.
    """

    task: TrainingTask
    steps: int
    lines: Sequence[Line]

    @property
    def title(self) -> str:
        """Its heading, with the number of steps unless that is the task's own."""
        more = "" if self.steps == self.task.steps else f", {self.steps:,} steps"
        return self.task.title + more

    @property
    def name(self) -> str:
        """Its name in names of files."""
        more = "" if self.steps == self.task.steps else f"-{self.steps}"
        return self.task.name + more


def sections_of(found: Comparison) -> list[Section]:
    """Return the sections, in the order of the tasks, short trainings first."""
    sections = []
    for task in TASKS.values():
        lengths = {one.steps[-1] for one in found.curves if one.task == task.name}
        for steps in sorted(lengths):
            lines = _lines_of(found, task.name, steps)
            sections.append(Section(task, steps, lines))
    return sections


def _lines_of(found: Comparison, task: str, steps: int) -> list[Line]:
    curves = [one for one in found.curves if (one.task, one.steps[-1]) == (task, steps)]
    labels = dict.fromkeys(curve.contender for curve in curves)
    lines = [
        _line(
            [curve for curve in curves if curve.contender == label],
            [
                cost
                for cost in found.costs
                if (cost.task, _timed_as(cost.contender)) == (task, _timed_as(label))
            ],
        )
        for label in labels
    ]
    return sorted(lines, key=lambda line: line.final_loss)


def _timed_as(label: str) -> str:
    """Return the label of the contender whose steps take the same time."""
    options = label.split(":")
    return ":".join(one for one in options if not one.startswith("lr_factor="))


def target_of(lines: Sequence[Line]) -> float | None:
    """Return the loss to reach: that of the reference, and a tolerance.

    If all lines of the reference have options, the best of them counts.
    """
    losses = {
        line.contender: line.final_loss
        for line in lines
        if line.contender.split(":")[0] == REFERENCE
    }
    if not losses:
        return None
    return (1 + _TOLERANCE) * losses.get(REFERENCE, min(losses.values()))


def _line(curves: Sequence[Curve], costs: Sequence[StepCost]) -> Line:
    losses, step_ms = {}, {cost.link: cost.step_ms for cost in costs}
    for link in dict.fromkeys(curve.link for curve in curves):
        own = [curve for curve in curves if curve.link == link]
        losses[link] = [
            statistics.mean(at) for at in zip(*(one.losses for one in own), strict=True)
        ]
        if link:
            step_ms[link] = statistics.median(one.step_ms for one in own)
    return Line(
        contender=curves[0].contender,
        steps=curves[0].steps,
        losses=losses,
        accuracy=statistics.mean(one.accuracies[-1] for one in curves),
        step_ms=step_ms,
        sent_per_step=statistics.median(one.sent_per_step for one in curves),
    )
