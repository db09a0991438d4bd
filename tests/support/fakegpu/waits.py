"""Shows that each wait of a backend is needed: without it, results differ or race."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.ranks import RankFailure, limit_of_ranks

# Work that is very late shows what is written over too early. Ranks that read it may
# take different decisions, and then wait for each other until the deadline, or without
# one in calls that nobody waits for. A run with all waits takes a few seconds.
_LATE = {"FAKEGPU_DELAY_US": "20000", "BLUECOMM_OPERATION_TIMEOUT_S": "20"}
_LIMIT_S = 30
# On a busy machine the host may be later still, and then a run shows nothing.
_SEEDS = 4


def waits_of(run: Callable[[Mapping[str, str]], object], sites: Path) -> list[str]:
    """Return the waits of the native code that ``run(environment)`` reaches.

    Args:
        run: Runs ranks on fake GPUs with additional environment variables.
        sites: File for the fake's list of waits.
    """
    run({"FAKEGPU_WAITS": str(sites)})
    return sorted(
        {line for line in sites.read_text().splitlines() if "_native" in line}
    )


def unneeded_waits(
    check: Callable[[Mapping[str, str]], object], waits: list[str]
) -> list[str]:
    """Return the waits without which ``check(environment)`` passes with all seeds.

    Threads that poll take other paths in other runs. So a wait that one of the runs
    does not reach is left out.
    """

    def passes(wait: str, seed: int) -> bool:
        key = wait.split()[0]
        with tempfile.TemporaryDirectory() as folder:
            sites = Path(folder) / "sites"
            ignored = {"FAKEGPU_IGNORE_WAIT": key, "FAKEGPU_WAITS": str(sites)}
            try:
                with limit_of_ranks(_LIMIT_S):
                    check({**ignored, "FAKEGPU_SEED": str(seed), **_LATE})
            except (RankFailure, AssertionError):
                return False
            return key in sites.read_text().split()

    return [wait for wait in waits if all(passes(wait, seed) for seed in range(_SEEDS))]
