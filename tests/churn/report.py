"""The page about churn jobs, and its picture."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.churn import gaps
from tests.churn.job import Hit
from tests.churn.resources import Held
from tests.churn.schedule import KINDS, RANKS
from tests.churn.step_log import Life

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = dict(
    zip(
        KINDS,
        ("#D55E00", "#56B4E9", "#0072B2", "#E69F00", "#CC79A7", "#009E73"),
        strict=True,
    )
)
_TITLES = ("", "number", "p50", "p99", "longest")


@dataclasses.dataclass(frozen=True)
class Churned:
    """A job under faults, beside jobs in which nothing failed.

    Attributes:
        algorithm: The algorithm.
        lives: The processes of its ranks.
        hits: Its faults.
        excluded: Number of ranks lost after a fault that should exclude nobody.
        lost: Number of losses.
        worst: Accuracy of the worst rank at the end, in percent.
        clean: Accuracy of each clean seed, in percent.
        clean_pace: Steps per second of the job in which nothing failed.
        held: Descriptors and memory of the long-lived processes after the warm-up,
            and at the end.
        problems: Failed checks.
    """

    algorithm: str
    lives: Sequence[Life]
    hits: Sequence[Hit]
    excluded: int
    lost: int
    worst: float
    clean: Sequence[float]
    clean_pace: float
    held: Mapping[str, tuple[Held, Held]]
    problems: Sequence[str]

    @property
    def span_ns(self) -> tuple[int, int]:
        """Time from the first fault to the end."""
        end_ns = max(life.steps[-1].end_ns for life in self.lives if life.steps)
        return self.hits[0].began_ns, end_ns


def page(about: str, jobs: Sequence[Churned], picture: str) -> str:
    """Return the page in Markdown.

    Args:
        about: A sentence about the jobs.
        jobs: The jobs.
        picture: Name of the picture beside the page.
    """
    parts = ["# Churn", about, f"![steps and pauses]({picture})"]
    for job in jobs:
        parts += [f"## {job.algorithm}", _facts(job), _pauses(job), _resources(job)]
        if job.problems:
            parts.append("\n".join(f"- **{text}**" for text in job.problems))
    return "\n\n".join(parts) + "\n"


def _facts(job: Churned) -> str:
    begin_ns, end_ns = job.span_ns
    pace = gaps.steps_per_s(job.lives, begin_ns, end_ns)
    rank_steps = gaps.rank_steps_per_s(job.lives, begin_ns, end_ns)
    back = gaps.back_after_s(job.lives, job.hits) or [0.0]
    clean = statistics.mean(job.clean)
    rows = [
        ("faults", f"{len(job.hits)} in {1e-9 * (end_ns - begin_ns):.0f} s"),
        ("ranks lost", f"{job.lost}"),
        ("of them after short stops and cuts", f"{job.excluded}"),
        ("ranks that have joined", f"{len(gaps.newcomers(job.lives))}"),
        (
            "first step of a newcomer, after the fault",
            f"{statistics.median(back):.1f} s (median), {max(back):.1f} s (longest)",
        ),
        (
            "steps per second, of the job without faults",
            f"{pace:.2f}, {100 * pace / job.clean_pace:.1f} %",
        ),
        (
            "steps of all ranks per second, of the job without faults",
            f"{rank_steps:.1f}, {100 * rank_steps / (RANKS * job.clean_pace):.1f} %",
        ),
        ("accuracy of the worst rank", f"{job.worst:.2f} %"),
        (
            f"mean of {len(job.clean)} clean seeds",
            f"{clean:.2f} % ({min(job.clean):.2f} to {max(job.clean):.2f})",
        ),
    ]
    return _table(("", ""), rows)


def _pauses(job: Churned) -> str:
    found = gaps.after_faults(job.lives, job.hits)
    found["join"] = gaps.at_joins(job.lives)
    rows = [
        (
            kind,
            f"{len(values)}",
            f"{_percentile(values, 50):.0f} ms",
            f"{_percentile(values, 99):.0f} ms",
            f"{max(values):.0f} ms",
        )
        for kind, values in found.items()
        if values
    ]
    text = (
        "Longest time between two steps of any other rank, less the median step, "
        f"within 5 s after a fault and around a join. The median step took "
        f"{gaps.median_step_ms(job.lives):.0f} ms."
    )
    return f"{text}\n\n{_table(_TITLES, rows)}"


def _resources(job: Churned) -> str:
    rows = [
        (
            name,
            f"{first.descriptors}, {last.descriptors}",
            f"{first.rss_kib / 1024:.1f} MiB, {last.rss_kib / 1024:.1f} MiB "
            f"({100 * (last.rss_kib / first.rss_kib - 1):+.1f} %)",
        )
        for name, (first, last) in job.held.items()
    ]
    return _table(("after the warm-up, at the end", "descriptors", "memory"), rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def draw(jobs: Sequence[Churned], path: Path) -> None:
    """Draw the steps of each rank and the pauses over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2 * len(jobs)), dpi=130, layout="constrained")
    panes = figure.subplots(2 * len(jobs), 1, squeeze=False)[:, 0]
    for number, job in enumerate(jobs):
        _draw_lives(panes[2 * number], job)
        _draw_pauses(panes[2 * number + 1], job)
    figure.savefig(path)


def _draw_lives(axes: Axes, job: Churned) -> None:
    begin_ns, _ = job.span_ns
    for life in job.lives:
        if life.steps:
            ends = [1e-9 * (life.steps[i].end_ns - begin_ns) for i in (0, -1)]
            axes.plot(ends, [life.rank] * 2, color="#333333", linewidth=2)
    for hit in job.hits:
        for rank in hit.fault.victims:
            at_s = 1e-9 * (hit.began_ns - begin_ns)
            axes.plot(
                at_s, rank, "o", color=_COLORS[hit.fault.kind], label=hit.fault.kind
            )
    handles, labels = axes.get_legend_handles_labels()
    kinds = dict(zip(labels, handles, strict=True))
    axes.legend(
        kinds.values(),
        kinds.keys(),
        ncols=len(kinds),
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        frameon=False,
        fontsize=8,
    )
    axes.set_ylabel("rank")
    axes.set_title(job.algorithm, loc="left", fontsize=10)


def _draw_pauses(axes: Axes, job: Churned) -> None:
    begin_ns, _ = job.span_ns
    pauses = gaps.after_faults(job.lives, job.hits)
    for kind, values in pauses.items():
        times = [
            1e-9 * (hit.began_ns - begin_ns)
            for hit in job.hits
            if hit.fault.kind == kind
        ]
        axes.plot(times, [max(1.0, one) for one in values], "o", color=_COLORS[kind])
    joins = [
        1e-9 * (life.steps[0].end_ns - begin_ns) for life in gaps.newcomers(job.lives)
    ]
    at_joins = [max(1.0, one) for one in gaps.at_joins(job.lives)]
    axes.plot(joins, at_joins, "x", color="#333333")
    axes.set_yscale("log")
    axes.set_ylabel("pause, ms")
    axes.set_xlabel("seconds since the first fault (x: a rank joins)")
