"""Reads a timeline that ``bfrun`` wrote."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

COMPUTE = ("FORWARD", "BACKWARD", "STEP")


@dataclasses.dataclass(frozen=True)
class Bar:
    """One event of a rank, in milliseconds since the timeline's first moment.

    Attributes:
        row: Its row in a viewer, such as ``"program"``.
        name: For example ``"FORWARD"`` or ``"late: rank 2"``.
        category: For example ``"compute"``, ``"late"``, ``"data"``, ``"communicate"``.
        begin_ms: Its beginning.
        duration_ms: Its duration.
        peer: The rank that was waited for, or -1.
    """

    row: str
    name: str
    category: str
    begin_ms: float
    duration_ms: float
    peer: int = -1


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The content of a file.

    Attributes:
        bars: Rank to its events.
        totals: The file's ``otherData``; see docs/timeline.md.
    """

    bars: dict[int, list[Bar]]
    totals: dict[str, Any]

    def times_ms(self, *ranks: int) -> tuple[float, float] | None:
        """Return the begin of the first and the end of the last event of some ranks.

        Without events, the result is ``None``.
        """
        bars = [bar for rank in ranks for bar in self.bars[rank]]
        if not bars:
            return None
        end_ms = max(bar.begin_ms + bar.duration_ms for bar in bars)
        return min(bar.begin_ms for bar in bars), end_ms


def read_timeline(path: Path) -> Timeline:
    """Return the timeline in a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not a timeline of bluecomm.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        events, totals = content["traceEvents"], content["otherData"]
        rows = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in events
            if event["name"] == "thread_name"
        }
        bars: dict[int, list[Bar]] = {each["rank"]: [] for each in totals["ranks"]}
        for event in events:
            if event["ph"] == "X":
                bars[event["pid"]].append(_bar(event, rows))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a timeline that bfrun --timeline-filename wrote: {error!r}"
        ) from None
    return Timeline(bars, totals)


def _bar(event: dict[str, Any], rows: dict[tuple[int, int], str]) -> Bar:
    return Bar(
        row=rows[event["pid"], event["tid"]],
        name=event["name"],
        category=event["cat"],
        begin_ms=event["ts"] / 1000,
        duration_ms=event["dur"] / 1000,
        peer=int(event["args"].get("peer", -1)),
    )
