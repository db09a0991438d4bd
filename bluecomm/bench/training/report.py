"""Results of ``train`` as JSON, as a table and as a plot."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bluecomm.bench.curves import Colour, colours
from bluecomm.bench.stored import stored
from bluecomm.bench.terminal import show_table
from bluecomm.bench.training.contenders import ALONE
from bluecomm.bench.training.measuring import StepTime
from bluecomm.bench.training.models import Layer

FORMAT = "bluecomm.bench.train/1"


@dataclasses.dataclass(frozen=True)
class TrainReport:
    """Results of a run of ``train``.

    Attributes:
        model: Name of the model.
        layer_nbytes: Bytes of parameters of each layer, in the order of forward.
        layer_shares: Share of the step's time of each layer.
        step_ms: Milliseconds of the emulated forward and backward pass; ``None`` with
            real compute.
        ranks_per_machine: Largest number of ranks on a machine.
        times: The measurements.
    """

    model: str
    layer_nbytes: Sequence[int]
    layer_shares: Sequence[float]
    step_ms: float | None
    ranks_per_machine: int
    times: Sequence[StepTime]

    @classmethod
    def of(
        cls,
        model: str,
        layers: Sequence[Layer],
        step_ms: float | None,
        ranks_per_machine: int,
        times: Sequence[StepTime],
    ) -> TrainReport:
        """Return the report on a model with these layers; see the attributes."""
        work = [layer.multiplications() for layer in layers]
        return cls(
            model=model,
            layer_nbytes=[4 * sum(s.numel() for s in one.shapes()) for one in layers],
            layer_shares=[own / sum(work) for own in work],
            step_ms=step_ms,
            ranks_per_machine=ranks_per_machine,
            times=times,
        )

    @property
    def alone_ms(self) -> float:
        """Step time without communication, in milliseconds, on the fewest ranks."""
        alone = [time for time in self.times if time.contender == ALONE]
        return min(alone, key=lambda time: time.ranks).median_ms

    def efficiency(self, time: StepTime) -> float:
        """Return a rank's speed relative to its speed alone: ``T(1) / T(n)``."""
        return self.alone_ms / time.median_ms

    def write(self, file: Path) -> None:
        """Write the report as JSON."""
        content: dict[str, Any] = {"format": FORMAT, **dataclasses.asdict(self)}
        for entry, time in zip(content["times"], self.times, strict=True):
            entry["efficiency"] = self.efficiency(time)
        with open(file, "w") as out:
            json.dump(content, out, indent=2)

    @classmethod
    def read(cls, file: Path) -> TrainReport:
        """Read a report that ``write`` has written.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file is not a training report.
        """
        with stored(file, FORMAT) as content:
            times = content.pop("times")
            for time in times:
                del time["efficiency"]
            return cls(times=[StepTime(**time) for time in times], **content)

    def print(self) -> None:
        """Print a table, sorted by number of ranks."""
        from rich.table import Table

        nbytes = sum(self.layer_nbytes)
        kind = "" if self.step_ms is None else f", emulated step {self.step_ms:g} ms"
        table = Table(title=f"{self.model}, {nbytes / 1e6:.1f} MB{kind}")
        table.add_column("ranks", justify="right")
        table.add_column("algorithm")
        for heading in (
            "ms/step",
            "min",
            "max",
            "steps/s",
            "exposed ms",
            "efficiency",
            "CPU ms",
        ):
            table.add_column(heading, justify="right")
        for time in self.times:
            table.add_row(
                str(time.ranks),
                f"{time.contender} ({time.path})" if time.path else time.contender,
                f"{time.median_ms:.1f}",
                f"{time.min_ms:.1f}",
                f"{time.max_ms:.1f}",
                f"{1e3 / time.median_ms:.2f}",
                f"{time.exposed_ms:.1f}",
                f"{100 * self.efficiency(time):.1f} %",
                f"{time.cpu_ms:.1f}",
            )
        show_table(table)

    def plot(self, file: Path) -> None:
        """Draw time per step and efficiency over the number of ranks."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        labels = list(dict.fromkeys(time.contender for time in self.times))
        for label, colour in zip(labels, colours(len(labels)), strict=True):
            own = [time for time in self.times if time.contender == label]
            ranks = [time.ranks for time in own]
            style: dict[str, str | Colour] = {"color": "black", "linestyle": "--"}
            if label != ALONE:
                style = {"marker": "o", "color": colour}
            left.plot(ranks, [time.median_ms for time in own], **style, label=label)
            share = [100 * self.efficiency(time) for time in own]
            right.plot(ranks, share, **style, label=label)
        counts = sorted({time.ranks for time in self.times})
        for axes, heading in ((left, "ms per step"), (right, "efficiency, %")):
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.set_ylim(bottom=0)
            axes.set_xlabel("ranks")
            axes.set_title(heading)
            axes.grid(alpha=0.3)
        figure.legend(
            *right.get_legend_handles_labels(),
            fontsize="small",
            loc="outside right upper",
        )
        kind = "" if self.step_ms is None else f", emulated step of {self.step_ms:g} ms"
        figure.suptitle(f"{self.model}, {sum(self.layer_nbytes) / 1e6:.1f} MB{kind}")
        figure.savefig(file, dpi=120)
