"""Results of ``ops``, and their form as JSON."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bfrun.wording import count
from bluecomm.bench.stored import stored

FORMAT = "bluecomm.bench.ops/1"

# Names of the peers; ratios compare with them.
GLOO, MPI, LIMIT = "gloo", "mpi", "limit"


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Microseconds of one blocking call on the slowest rank, over the rounds.

    ``library`` names bluecomm or a peer, and ``nbytes`` is the larger of a rank's input
    and output. ``q1_us`` and ``q3_us`` are the quartiles, ``bus_gb_per_s`` is the bus
    bandwidth of the median in 10^9 bytes per second.
    """

    operation: str
    library: str
    dtype: str
    nbytes: int
    rounds: int
    median_us: float
    min_us: float
    q1_us: float
    q3_us: float
    max_us: float
    bus_gb_per_s: float

    @property
    def case(self) -> tuple[str, str, int]:
        """Operation, type and size; measurements of equal cases can be compared."""
        return self.operation, self.dtype, self.nbytes


@dataclasses.dataclass(frozen=True)
class Results:
    """Results of a run of ``ops``.

    ``layout`` has the machine of each rank, and ``about`` the date, cores, versions and
    arguments that are needed to repeat the run. ``notes`` say what was left out.
    """

    layout: list[int]
    about: dict[str, Any]
    measurements: list[Measurement]
    notes: list[str]

    def by_case(self) -> dict[tuple[str, str, int], dict[str, Measurement]]:
        """Map each case to its measurements by name, in the order of measuring."""
        cases: dict[tuple[str, str, int], dict[str, Measurement]] = {}
        for measurement in self.measurements:
            cases.setdefault(measurement.case, {})[measurement.library] = measurement
        return cases

    def where(self) -> str:
        """Describe the machines of the run in words."""
        machines = max(self.layout) + 1
        written = ", inputs written before each call" * self.about.get(
            "inputs_written", False
        )
        return (
            f"{count(len(self.layout), 'rank')} on {count(machines, 'machine')}, "
            f"{count(self.about['cores'], 'core')}{written}"
        )

    def save(self, path: Path) -> None:
        """Write the results as JSON."""
        text = json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1)
        path.write_text(text + "\n")


def load(path: Path) -> Results:
    """Read results that ``Results.save`` has written.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file has other content, or another version of the format.
    """
    with stored(path, FORMAT) as content:
        measurements = [Measurement(**row) for row in content.pop("measurements")]
        return Results(measurements=measurements, **content)


def spread(times_us: Sequence[float]) -> dict[str, float]:
    """Return median, extremes and quartiles, by the field names of ``Measurement``."""
    q1, _, q3 = (
        statistics.quantiles(times_us, n=4, method="inclusive")
        if len(times_us) > 1
        else (times_us[0],) * 3
    )
    return {
        "median_us": statistics.median(times_us),
        "min_us": min(times_us),
        "q1_us": q1,
        "q3_us": q3,
        "max_us": max(times_us),
    }
