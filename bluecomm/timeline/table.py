"""Summarizes a timeline in a few lines: who computed, who waited, and for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bfrun.text_table import align
from bfrun.wording import count
from bluecomm.timeline.reading import COMPUTE, Timeline

_HEADINGS = (
    *("rank", "host", "from ms", "to ms"),
    *("forward s", "backward s", "step s", "waited s"),
    *("longest for", "called last"),
)


def describe(timeline: Timeline) -> str:
    """Return the totals of a timeline as a table and two remarks."""
    totals = timeline.totals
    last = {each["rank"]: each for each in totals["called_last"]}
    rows = [_HEADINGS, *(_row(each, timeline, last) for each in totals["ranks"])]
    lines = align(rows)
    if last:
        slowest = max(last.values(), key=lambda each: each["after_first_s"])
        late_ms = 1e3 * slowest["after_first_s"] / slowest["times"]
        lines.append(
            f"rank {slowest['rank']} held up the others most: it was the last to call "
            f"{count(slowest['times'], 'operation')}, on average {late_ms:.1f} ms "
            "after the first"
        )
    sent = sum(edge["bytes"] for edge in totals["edges"])
    lines.append(f"{sent / 1e6:.1f} MB over {count(len(totals['edges']), 'edge')}")
    return "\n".join(lines)


def _row(
    rank: Mapping[str, Any], timeline: Timeline, last: Mapping[int, Any]
) -> Sequence[str]:
    totals = timeline.totals
    times_ms = timeline.times_ms(rank["rank"])
    times = ("-", "-") if times_ms is None else (f"{each:.1f}" for each in times_ms)
    number, seconds = rank["rank"], rank["seconds"]
    waits = {
        each["for"]: each["exposed_s"]
        for each in totals["waits"]
        if each["rank"] == number
    }
    longest = max(waits, key=lambda peer: waits[peer], default=None)
    return (
        str(number),
        rank["host"],
        *times,
        *(f"{seconds.get(name, 0.0):.3f}" for name in COMPUTE),
        f"{seconds.get('WAIT', 0.0):.3f}",
        "-" if longest is None else f"rank {longest} ({waits[longest]:.3f} s)",
        count(last[number]["times"], "time") if number in last else "-",
    )
