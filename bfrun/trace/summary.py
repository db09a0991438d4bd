"""Sums up a timeline: bytes and waits per edge, and the ranks that called last."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from bfrun.trace.calls import is_one_sided
from bfrun.trace.clock import ClockEstimate
from bfrun.trace.slices import FIRST_LANE, WAIT, RankSlices
from bfrun.trace.spool import Spool


@dataclasses.dataclass
class _Edge:
    nbytes: int = 0
    messages: int = 0


@dataclasses.dataclass
class _Wait:
    late_ns: int = 0
    data_ns: int = 0
    exposed_ns: int = 0


@dataclasses.dataclass
class _Callers:
    """The calls of one operation: their number, the first, and the last."""

    count: int
    first_ns: int
    last_ns: int
    last: int


class Summary:
    """Sums over ranks. ``as_json`` returns the timeline's ``otherData``.

    Attributes:
        dropped: Number of events that the timeline lacks.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._ranks: dict[int, dict[str, Any]] = {}
        self._edges: dict[tuple[int, int], _Edge] = collections.defaultdict(_Edge)
        self._waits: dict[tuple[int, int], _Wait] = collections.defaultdict(_Wait)
        self._callers: dict[tuple[object, ...], _Callers] = {}

    def add(
        self, trace: Spool, slices: RankSlices, host: str, clock: ClockEstimate
    ) -> None:
        """Add one process of a rank.

        The sums of a rank are those of all its processes; the processes of a rank come
        in the order of their start.
        """
        header = trace.header
        self.dropped += header.dropped
        seconds: dict[str, float] = collections.defaultdict(float)
        for each in slices.slices:
            if each.category in ("compute", "wait"):
                name = WAIT if each.category == "wait" else each.name
                seconds[name] += (each.end_ns - each.begin_ns) / 1e9
            elif each.category in ("late", "data") and each.track < FIRST_LANE:
                exposed = self._waits[header.rank, each.arguments["peer"]]
                exposed.exposed_ns += each.end_ns - each.begin_ns
        known = self._ranks.get(header.rank, {})
        for name, value in known.get("seconds", {}).items():
            seconds[name] += value
        self._ranks[header.rank] = {
            "rank": header.rank,
            "host": host,
            "pid": header.pid,
            "events": known.get("events", 0) + header.kept,
            "dropped": known.get("dropped", 0) + header.dropped,
            "clock_offset_us": clock.offset_ns(header.started_ns) / 1000,
            "clock_error_us": clock.error_ns / 1000,
            "seconds": {name: round(value, 6) for name, value in seconds.items()},
        }
        for call in slices.calls:
            for peer, edge in call.edges.items():
                total = self._edges[header.rank, peer]
                total.nbytes += edge.bytes_sent
                total.messages += edge.messages_sent
            for wait in call.waits:
                waited = self._waits[header.rank, wait.peer]
                if wait.late:
                    waited.late_ns += wait.end_ns - wait.begin_ns
                else:
                    waited.data_ns += wait.end_ns - wait.begin_ns
            kind = trace.name(call.kind)
            if is_one_sided(kind):
                continue
            key = (*call.key, kind, trace.name(call.name))
            self._called(key, header.rank, clock.to_ours(call.begin_ns))

    def _called(self, key: tuple[object, ...], rank: int, when_ns: int) -> None:
        known = self._callers.setdefault(key, _Callers(0, when_ns, when_ns, rank))
        known.count += 1
        known.first_ns = min(known.first_ns, when_ns)
        if when_ns > known.last_ns:
            known.last_ns, known.last = when_ns, rank

    def as_json(self) -> dict[str, Any]:
        """Return the summary as values for JSON."""
        last: dict[int, list[int]] = {}
        for callers in self._callers.values():
            if callers.count > 1:
                late = callers.last_ns - callers.first_ns
                last.setdefault(callers.last, []).append(late)
        return {
            "ranks": [self._ranks[rank] for rank in sorted(self._ranks)],
            "edges": [
                {
                    "from": sender,
                    "to": receiver,
                    "bytes": edge.nbytes,
                    "messages": edge.messages,
                }
                for (sender, receiver), edge in sorted(self._edges.items())
                if edge.messages
            ],
            "waits": [
                {
                    "rank": rank,
                    "for": peer,
                    "late_s": wait.late_ns / 1e9,
                    "data_s": wait.data_ns / 1e9,
                    "exposed_s": wait.exposed_ns / 1e9,
                }
                for (rank, peer), wait in sorted(self._waits.items())
            ],
            "called_last": [
                {"rank": rank, "times": len(late), "after_first_s": sum(late) / 1e9}
                for rank, late in sorted(last.items())
            ],
        }
