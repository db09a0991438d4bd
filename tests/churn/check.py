"""Checks the logs of a churn job: no step lost, none applied twice, equal bits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tests.churn.step_log import Life, Step

# Averaging changes equal counts by rounding errors; a lost update changes them by 1.
_ROUNDING = 0.01


def problems(lives: Sequence[Life], ends: Mapping[int, int]) -> list[str]:
    """Return what is wrong with the steps of a job's ranks.

    Args:
        lives: All processes of the job.
        ends: Times of faults that have ended processes, by pid. Their later steps are
            not checked.
    """
    found: list[str] = []
    known: dict[int, tuple[Life, Step]] = {}
    for life in lives:
        name = f"rank {life.rank} (pid {life.pid})"
        steps = life.steps
        if life.pid in ends:
            steps = [step for step in steps if step.end_ns < ends[life.pid]]
        for before, after in itertools.pairwise(steps):
            if after.number != before.number + 1:
                found.append(f"{name}: step {after.number} after {before.number}")
        for step in steps:
            what = f"{name}, step {step.number}"
            for model in step.models:
                if abs(model.applied - (step.number - 1)) > _ROUNDING:
                    found.append(f"{what}: {model.applied} updates were applied before")
            other, same = known.setdefault(step.number, (life, step))
            if same.position != step.position:
                found.append(
                    f"{what}: took {step.position} samples, and rank {other.rank} "
                    f"(pid {other.pid}) {same.position}"
                )
            digests = [[one.digest for one in each.models] for each in (same, step)]
            if digests[0] != digests[1]:
                found.append(f"{what}: other bits than rank {other.rank}: {digests}")
    done = known.keys()
    if done and sorted(done) != [*range(1, max(done) + 1)]:
        found.append(f"nobody has done {set(range(1, max(done) + 1)) - done}")
    return found
