"""Jobs with ``--partition both``: how to start them, and what their ranks have told."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.parting import RANKS

SIDES = [{0, 1}, {2, 3}]
# Within so many rounds after the join, the models must be as close as before the cut.
ROUNDS = round(10 * math.log2(RANKS))
_CLOSE = 1.1


def parting_command(
    cluster: Cluster, folder: Path, link_timeout_s: float, step_ms: float, after: int
) -> list[str]:
    """Return the arguments of bfrun for a job on two hosts.

    Args:
        cluster: The hosts.
        folder: Where the ranks tell how far they are.
        link_timeout_s: A cut must end before half of it.
        step_ms: Milliseconds that each step waits.
        after: Steps after the sides have joined again.
    """
    options = ["--on-failure", "continue", "--respawn", "--partition", "both"]
    options += ["--ssh-config", str(cluster.ssh_config), "-H", "node1:2,node2:2"]
    options += ["--link-timeout", f"{link_timeout_s:g}", "-x", "OMP_NUM_THREADS=1"]
    rank = [sys.executable, "-m", "tests.support.parting"]
    return [*options, *rank, str(folder), str(step_ms), str(after)]


def progress(folder: Path, rank: int) -> Any:
    """Return what a rank has told last; ``None`` if it has told nothing yet."""
    path = folder / f"progress-{rank}"
    return json.loads(path.read_text()) if path.exists() else None


def is_on_its_side(rank: int, told: Mapping[str, Any]) -> bool:
    """Return whether a rank trains without the ranks of the other side."""
    return {*told["members"]} <= SIDES[rank // 2]


def consensus(found: Sequence[Mapping[str, Any]], phase: str) -> dict[int, float]:
    """Return the largest difference between two models in each step of all ranks.

    Args:
        found: The object that each rank has printed.
        phase: ``"before"`` the network has healed, or ``"after"`` that.
    """
    weights = [{int(s): w for s, w in one[phase].items()} for one in found]
    steps = sorted(set.intersection(*({*one} for one in weights)))
    each = [(step, [one[step] for one in weights]) for step in steps]
    return {step: max(values) - min(values) for step, values in each}


def rounds_until_close(
    before: Mapping[int, float], after: Mapping[int, float], settled: int
) -> int | None:
    """Return after how many rounds the models are as close as before the cut.

    Args:
        before: The consensus distance in steps before it.
        after: The same in the steps after the join.
        settled: The step from which on the distance no longer changed.
    """
    close = min(distance for step, distance in before.items() if step >= settled)
    found = [after[step] <= _CLOSE * close for step in sorted(after)]
    return found.index(True) if True in found else None
