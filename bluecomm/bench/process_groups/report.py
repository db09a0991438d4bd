"""Results of ``torch`` as JSON and as tables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from bluecomm.bench.process_groups.groups import BLUECOMM
from bluecomm.bench.results import GLOO, Measurement, Results
from bluecomm.bench.sizes import readable_size
from bluecomm.bench.stored import stored
from bluecomm.bench.table import number
from bluecomm.bench.terminal import show_table
from bluecomm.bench.training.measuring import StepTime
from bluecomm.bench.training.report import TrainReport

FORMAT = "bluecomm.bench.torch/2"

# Names in the results. SHARED is appended where the tensors are in shared memory.
SHARED = ", shared"
NATIVE = "bf.allreduce_"


@dataclasses.dataclass(frozen=True)
class TorchReport:
    """Results of a run of ``torch``.

    Attributes:
        calls: Times of the collectives. An operation is "all_reduce, sync", for
            example.
        steps: Times of the steps of each model.
    """

    calls: Results
    steps: Sequence[TrainReport]

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        path.write_text(
            json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1) + "\n"
        )

    @classmethod
    def read(cls, path: Path) -> TorchReport:
        """Read a report that ``write`` has written.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file has other content, or another version of the format.
        """
        with stored(path, FORMAT) as content:
            calls, steps = content["calls"], content["steps"]
            rows = [Measurement(**row) for row in calls.pop("measurements")]
            reports = [
                TrainReport(
                    times=[StepTime(**time) for time in one.pop("times")], **one
                )
                for one in steps
            ]
            return cls(Results(measurements=rows, **calls), reports)

    def print(self) -> None:
        """Print a table of the collectives and one of each model's steps."""
        if self.calls.measurements:
            self._print_calls()
        for note in self.calls.notes:
            print(f"note: {note}")
        for steps in self.steps:
            steps.print()
            for text in exposed_ratios(steps):
                print(text)

    def _print_calls(self) -> None:
        from rich.table import Table

        where = self.calls.where()
        table = Table(title=f"one call on {where}; slowest rank, median of rounds")
        for heading in ("collective", "size", "through"):
            table.add_column(heading)
        for heading in ("median us", "quartiles us", "min us", "x gloo", "of native"):
            table.add_column(heading, justify="right")
        for (operation, _, nbytes), by_name in self.calls.by_case().items():
            texts = [operation, readable_size(nbytes)]
            for m in by_name.values():
                table.add_row(
                    *texts,
                    m.library,
                    number(m.median_us),
                    f"{number(m.q1_us)} - {number(m.q3_us)}",
                    number(m.min_us),
                    _quotient(by_name.get(GLOO), m),
                    _quotient(by_name.get(_native_of(m)), m),
                )
                texts = ["", ""]
            table.add_section()
        show_table(table)


def exposed_ratios(steps: TrainReport) -> list[str]:
    """Return lines that compare each step over bluecomm with its twin over gloo.

    They compare the time beyond the same step of a model without DDP. If DDP without
    communication was measured, too, further lines also subtract its copies of the
    gradients.
    """
    exposed = {time.contender: time.exposed_ms for time in steps.times}
    lines = []
    for label, own in exposed.items():
        name, _, options = label.partition(":")
        gloo = exposed.get(name)
        if not options.startswith(BLUECOMM) or gloo is None:
            continue
        lines.append(f"exposed, {name} over gloo / {label}: {_share(gloo, own)}")
        copies = exposed.get(f"{name}:silent")
        if copies is not None:
            share = _share(gloo - copies, own - copies)
            lines.append(f"the same less {name}:silent: {share}")
    return lines


def _share(gloo: float, own: float) -> str:
    return f"{gloo / own:.2f}" if own > 0 else "infinite"


def _native_of(m: Measurement) -> str:
    """Return the name of the native call on the same kind of tensors."""
    return NATIVE + SHARED if m.library.endswith(SHARED) else NATIVE


def _quotient(other: Measurement | None, m: Measurement) -> str:
    """Return how many times as long the other takes; empty without another."""
    if other is None or other is m:
        return ""
    return f"{other.median_us / m.median_us:.2f}"
