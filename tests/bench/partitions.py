"""Measure how both sides of a cut train on, and how soon they agree again.

Run it as root, from the project's folder. The hosts are network namespaces::

    python -m tests.bench.partitions --seconds 30 --json partition.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bluecomm.bench.arguments import positive
from bluecomm.bench.ending import exit_at_sigterm
from bluecomm.bench.terminal import show_table
from tests.bench.survive import add_rate, shaped_cluster
from tests.support.cluster import Cluster
from tests.support.deadlines import DEADLINE_S, say, wait_until
from tests.support.launch import launched
from tests.support.parting import RANKS
from tests.support.partitions import (
    ROUNDS,
    consensus,
    is_on_its_side,
    parting_command,
    progress,
    rounds_until_close,
)

STEP_MS = 50.0
# Until then the distance between the models has settled.
BEFORE = 200
AFTER = 100


@dataclasses.dataclass(frozen=True)
class Partition:
    """How a job went on while its network was cut, and after that.

    Attributes:
        seconds: How long the cut lasted.
        apart_s: Seconds of the cut until both sides trained on.
        steps: Steps of each rank from then to the end of the cut.
        joined_s: Seconds from the end of the cut until all ranks trained together.
        before: Consensus distance before the cut.
        apart: Largest consensus distance after the sides had joined.
        rounds: Rounds until it was as before; ``None`` if it never was.
    """

    seconds: float
    apart_s: float
    steps: list[int]
    joined_s: float
    before: float
    apart: float
    rounds: int | None

    @property
    def is_good(self) -> bool:
        """Whether both sides stepped, and agreed again in time."""
        return min(self.steps) > 0 and self.rounds is not None and self.rounds <= ROUNDS


def main() -> int:
    """Return 1 if a side did not train on, or the sides agreed too late."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.partitions", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--seconds", type=positive, default=30.0, help="length of the cut (default: 30)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    add_rate(parser)
    args = parser.parse_args()
    exit_at_sigterm()
    load = os.getloadavg()[0]
    with shaped_cluster(2, args.rate) as cluster:
        found = _measure(cluster, args.seconds)
    about = f"{RANKS} ranks on 2 hosts, steps of {STEP_MS:g} ms, load {load:.1f}"
    _print(found, about)
    if args.json:
        content = {"about": about, **dataclasses.asdict(found)}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if found.is_good else 1


def _measure(cluster: Cluster, seconds: float) -> Partition:
    last = cluster.hosts[-1]
    with tempfile.TemporaryDirectory(prefix="partition-", dir="/tmp") as name:
        folder = Path(name)
        # A cut may last half of the timeout.
        command = parting_command(cluster, folder, 4 * seconds, STEP_MS, AFTER)
        with launched(folder, *command) as job:

            def told() -> list[Any]:
                return [progress(folder, rank) for rank in range(RANKS)]

            def report() -> str:
                return f"{told()}\n{job.out}\n{job.err}"

            wait_until(
                lambda: all(o and o["together"] > BEFORE for o in told()), report
            )
            last.cut_link()
            begun = time.monotonic()
            wait_until(
                lambda: all(map(is_on_its_side, range(RANKS), told())),
                report,
                look_s=0.005,
            )
            apart_s = time.monotonic() - begun
            first = [one["step"] for one in told()]
            time.sleep(max(0.0, begun + seconds - time.monotonic()))
            steps = [o["step"] - b for o, b in zip(told(), first, strict=True)]
            say(folder, "healed")
            last.restore_link()
            healed = time.monotonic()
            wait_until(
                lambda: all(o["is_back"] for o in told()), report, 2 * DEADLINE_S
            )
            joined_s = time.monotonic() - healed
            assert job.wait(4 * DEADLINE_S) == 0, report()
        found = [json.loads(text) for text in re.findall(r"\{.*\}", job.out)]
    before, after = consensus(found, "before"), consensus(found, "after")
    return Partition(
        seconds=seconds,
        apart_s=apart_s,
        steps=steps,
        joined_s=joined_s,
        before=min(distance for step, distance in before.items() if step >= BEFORE),
        apart=max(after.values()),
        rounds=rounds_until_close(before, after, BEFORE),
    )


def _print(found: Partition, about: str) -> None:
    from rich.table import Table

    table = Table(title=f"a cut of {found.seconds:g} s with --partition both, {about}")
    for heading in (
        "both sides train after",
        "steps while cut",
        "joined after",
        "distance before",
        "at the join",
        "rounds until as before",
        "limit",
        "",
    ):
        table.add_column(heading, justify="right")
    table.add_row(
        f"{found.apart_s:.1f} s",
        " ".join(map(str, found.steps)),
        f"{found.joined_s:.1f} s",
        f"{found.before:.3g}",
        f"{found.apart:.3g}",
        "never" if found.rounds is None else str(found.rounds),
        str(ROUNDS),
        "ok" if found.is_good else "FAILED",
    )
    show_table(table)


if __name__ == "__main__":
    sys.exit(main())
