"""Writes one timeline of all ranks, in the JSON that Chrome and Perfetto read.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
("Trace Event Format", complete events, flow events, metadata).
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import secrets
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from bfrun.errors import ProtocolError
from bfrun.files import create_file
from bfrun.trace.calls import TracedCall, is_one_sided
from bfrun.trace.clock import ClockEstimate
from bfrun.trace.slices import RankSlices, make_slices
from bfrun.trace.spool import HEADER_NBYTES, Spool, parse_header
from bfrun.trace.summary import Summary

# Colours of waits in Chrome; Perfetto chooses its own.
_COLOURS = {"late": "terrible", "data": "bad", "wait": "grey"}


@dataclasses.dataclass(frozen=True)
class Source:
    """One packed trace, and how to bring it on the common clock.

    Attributes:
        name: Name for remarks.
        read: Function that returns the first N bytes of the trace.
        host: Host of the rank.
        clock: Clock of that host.
    """

    name: str
    read: Callable[[int], bytes]
    host: str
    clock: ClockEstimate


@dataclasses.dataclass(frozen=True)
class Merged:
    """The result of a merge.

    Attributes:
        ranks: Ranks in the timeline.
        dropped: Number of events that newer ones have overwritten, over all ranks.
        broken: One line about each source that could not be read.
        error_ns: Largest possible error of the offset between two clocks.
    """

    ranks: tuple[int, ...]
    dropped: int
    broken: tuple[str, ...]
    error_ns: int


def merge_file(sources: Sequence[Source], target: Path) -> Merged:
    """Write the timeline of all sources to ``target``, whole or not at all.

    Raises:
        OSError: The file cannot be written.
    """
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}.partial")
    fd = create_file(partial, 0o666)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as out:
            merged = merge(sources, out)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return merged


def merge(sources: Sequence[Source], out: TextIO) -> Merged:
    """Write the timeline of all sources to ``out``.

    A rank that was started again has a source for each of its processes.
    """
    broken = []
    readable = []
    for source in sources:
        try:
            header = parse_header(source.read(HEADER_NBYTES))
            readable.append((header.rank, header.pid, header.started_ns, source))
        except (OSError, ProtocolError) as error:
            broken.append(f"{source.name} ({source.host}): {error}")
    readable.sort(key=lambda each: (each[0], each[3].clock.to_ours(each[2])))
    base_ns = min((s.clock.to_ours(start) for *_, start, s in readable), default=0)
    summary = Summary()
    rows: dict[int, _Rows] = collections.defaultdict(_Rows)
    out.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    separator = ""
    for rank, _, _, source in readable:
        try:
            trace = Spool(source.read(sys.maxsize))
            slices = make_slices(trace)
        except (OSError, ProtocolError) as error:
            broken.append(f"{source.name} ({source.host}): {error}")
            continue
        summary.add(trace, slices, source.host, source.clock)
        rows[rank].share(slices, _label(trace, source))
        for event in _events(trace, slices, rows[rank].label, source, base_ns):
            out.write(separator + json.dumps(event, separators=(",", ":")))
            separator = ",\n"
    errors = sorted(source.clock.error_ns for *_, source in readable)[-2:]
    other = {**summary.as_json(), "unreadable": broken, "clock_start_ns": base_ns}
    out.write('\n],"otherData":' + json.dumps(other, separators=(",", ":")) + "}\n")
    return Merged(tuple(rows), summary.dropped, tuple(broken), sum(errors))


class _Rows:
    """The rows of a rank, which its processes share.

    Attributes:
        label: Describes the processes.
    """

    def __init__(self) -> None:
        self.label = ""
        self._track_of: dict[str, int] = {}
        self._taken: set[int] = set()

    def share(self, slices: RankSlices, label: str) -> None:
        """Let rows of a process continue rows of earlier ones with the same names.

        Changes the numbers of the tracks in ``slices``.
        """
        self.label += f"; {label}" if self.label else label
        tracks: dict[int, int] = {}
        for track, name in slices.tracks.items():
            number = self._track_of.get(name)
            if number is None or number in tracks.values():
                number = track
                while number in self._taken:
                    number += 1
            tracks[track] = number
            self._taken.add(number)
            self._track_of.setdefault(name, number)
        for each in slices.slices:
            each.track = tracks[each.track]
        slices.tracks = {tracks[t]: name for t, name in slices.tracks.items()}


def _events(
    trace: Spool, slices: RankSlices, label: str, source: Source, base_ns: int
) -> Iterator[dict[str, Any]]:
    """Yield the events of one rank: names of its rows, slices, arrows."""
    yield from _names(trace, slices, label)

    def time_us(theirs_ns: int) -> float:
        return (source.clock.to_ours(theirs_ns) - base_ns) / 1000

    for each in slices.slices:
        begin, end = time_us(each.begin_ns), time_us(each.end_ns)
        told = dict(each.arguments)
        headers: dict[int, float] = {}
        if each.call is not None and each.call.headers:
            for peer, when in sorted(each.call.headers.items()):
                headers[peer] = time_us(when)
            told["first_header_us"] = {f"{peer}": at for peer, at in headers.items()}
        event = {
            "ph": "X",
            "name": each.name,
            "cat": each.category,
            "pid": trace.header.rank,
            "tid": each.track,
            "ts": begin,
            "dur": round(max(0.0, end - begin), 3),
            "args": told,
        }
        if each.category in _COLOURS:
            event["cname"] = _COLOURS[each.category]
        yield event
        if each.call is not None:
            if trace.name(each.call.kind) == "recv":
                # Within the slice, or viewers do not find it.
                headers = dict.fromkeys(each.call.edges, max(begin, end - 0.001))
            yield from _arrows(trace, each.call, each.track, begin, headers)


def _label(trace: Spool, source: Source) -> str:
    """Describe a process."""
    label = f"{source.host}, pid {trace.header.pid}"
    if not source.clock.is_exact:
        label += f", clock within {source.clock.error_ns / 1000:.1f} us"
    if trace.header.dropped:
        label += f", {trace.header.dropped} earlier events dropped"
    return label


def _names(trace: Spool, slices: RankSlices, label: str) -> Iterator[dict[str, Any]]:
    """Yield the names and the order of a rank and its rows."""
    rank = trace.header.rank
    facts: list[tuple[int, str, dict[str, Any]]] = [
        (0, "process_name", {"name": f"rank {rank}"}),
        (0, "process_labels", {"labels": label}),
        (0, "process_sort_index", {"sort_index": rank}),
    ]
    for track, name in sorted(slices.tracks.items()):
        facts.append((track, "thread_name", {"name": name}))
        order = {"sort_index": _sort_index(name, track)}
        facts.append((track, "thread_sort_index", order))
    for track, kind, told in facts:
        yield {"ph": "M", "name": kind, "pid": rank, "tid": track, "args": told}


def _arrows(
    trace: Spool,
    call: TracedCall,
    track: int,
    begin_us: float,
    headers: dict[int, float],
) -> Iterator[dict[str, Any]]:
    """Yield this rank's ends of the arrows from senders to receivers."""
    kind = trace.name(call.kind)
    if kind in ("send", "recv"):
        key = f"{call.key}message"
    elif is_one_sided(kind):
        return
    else:
        key = f"{call.key}{kind} {trace.name(call.name)}"
    rank = trace.header.rank
    common = {"cat": "message", "name": "message", "pid": rank, "tid": track}
    for peer, edge in sorted(call.edges.items()):
        if edge.messages_sent:
            number = _arrow_id(key, rank, peer)
            yield {"ph": "s", **common, "id": number, "ts": begin_us}
    for peer, at in headers.items():
        number = _arrow_id(key, peer, rank)
        yield {"ph": "f", "bp": "e", **common, "id": number, "ts": at}


def _arrow_id(key: str, sender: int, receiver: int) -> int:
    text = f"{key}>{sender}>{receiver}".encode()
    # Viewers read numbers as doubles, which hold 53 bits.
    return (zlib.crc32(text) << 32 | zlib.adler32(text)) & (1 << 53) - 1


def _sort_index(name: str, track: int) -> int:
    order = ("program", "communication", "CUDA", "tensor", "progress", "thread")
    return order.index(name.split()[0]) * 10_000 + track % 10_000
