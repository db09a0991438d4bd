"""Makes the slices of one rank, which a viewer shows on tracks.

A track is a row of slices, one after another or nested.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Mapping
from typing import Any

from bfrun.trace import spool
from bfrun.trace.calls import TracedCall, Wait, collect_calls, is_one_sided
from bfrun.trace.spool import Event, Spool

# First numbers of tracks. Below them, the track of a thread has the thread's number.
FIRST_LANE = 1 << 24
FIRST_TENSOR = 2 << 24
FIRST_DEVICE = 3 << 24

FORWARD, BACKWARD, STEP = "FORWARD", "BACKWARD", "STEP"
WAIT = "WAIT"
COMPUTE_AVERAGE = "COMPUTE_AVERAGE"

# Names of what a thread does in calls on windows: it moves bytes, or it waits.
_MOVES = {
    "win_put": "WIN_PUT",
    "win_accumulate": "WIN_ACCUMULATE",
    "win_get": "WIN_GET",
    "win_update": "WIN_SYNC_COMPUTE_AVERAGE",
}
_WAITS = {"win_create": "WIN_CREATE", "win_mutex": "Aquire_Mutex"}
# Calls without communication.
_LOCAL = frozenset({"win_update"})


@dataclasses.dataclass
class Slice:
    """An activity from ``begin_ns`` to ``end_ns``."""

    track: int
    name: str
    category: str
    begin_ns: int
    end_ns: int
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    call: TracedCall | None = None


@dataclasses.dataclass
class RankSlices:
    """The slices, tracks and calls of one rank.

    Attributes:
        slices: Slices in order of track and begin, properly nested.
        tracks: Name of each track.
        calls: Calls of operations.
    """

    slices: list[Slice]
    tracks: dict[int, str]
    calls: list[TracedCall]


def make_slices(trace: Spool) -> RankSlices:
    """Return the slices of a rank."""
    events = list(trace.events())
    calls = collect_calls(events)
    last_ns = max((event.end_ns for event in events), default=0)
    slices = [
        *_thread_slices(trace, events, calls),
        *_activities(trace, events, last_ns),
        *_lanes(trace, calls.values(), last_ns),
        *_device_slices(trace, events),
    ]
    slices.sort(key=lambda each: (each.track, each.begin_ns, -each.end_ns))
    _nest(slices)
    tracks = {each.track: "" for each in slices}
    for track in tracks:
        tracks[track] = _track_name(trace, track, slices)
    return RankSlices(slices, tracks, list(calls.values()))


def _thread_slices(
    trace: Spool, events: Iterable[Event], calls: Mapping[int, TracedCall]
) -> Iterable[Slice]:
    """Yield the activities of threads in the library: start, wait, combine."""
    for event in events:
        call = calls.get(event.operation)
        if call is None:
            continue
        name, kind = trace.name(call.name), trace.name(call.kind)
        span = (event.begin_ns, event.end_ns)
        told = {"operation": kind, "name": name}
        if event.type == spool.ENQUEUE:
            activity = f"ENQUEUE_{kind.upper()}"
            yield Slice(event.thread, activity, "enqueue", *span, told)
        elif event.type == spool.COMBINE:
            activity = _MOVES.get(kind, COMPUTE_AVERAGE)
            yield Slice(event.thread, activity, "combine", *span, told)
        elif event.type == spool.BLOCKED:
            activity = _WAITS.get(kind, WAIT)
            yield Slice(event.thread, activity, "wait", *span, told)
            for wait in call.waits:
                begin = max(wait.begin_ns, event.begin_ns)
                end = min(wait.end_ns, event.end_ns)
                if begin < end:
                    yield _wait_slice(event.thread, wait, begin, end)


def _wait_slice(track: int, wait: Wait, begin_ns: int, end_ns: int) -> Slice:
    kind = "late" if wait.late else "data"
    name = f"{kind}: rank {wait.peer}"
    return Slice(track, name, kind, begin_ns, end_ns, {"peer": wait.peer})


def _activities(trace: Spool, events: Iterable[Event], last_ns: int) -> list[Slice]:
    """Pair begins with ends. Activities without an end last until the trace ends."""
    tensors: dict[int, int] = {}
    open_: dict[int, list[Slice]] = {}
    done = []
    for event in events:
        if event.type == spool.BEGIN:
            stack = open_.setdefault(event.label, [])
            stack.append(_activity(trace, event, tensors, last_ns))
        elif event.type == spool.END:
            stack = open_.get(event.label, [])
            wanted = trace.name(event.name)
            while stack:
                one = stack.pop()
                one.end_ns = event.end_ns
                done.append(one)
                if wanted in ("", one.name):
                    break
    return done + [one for stack in open_.values() for one in stack]


def _activity(
    trace: Spool, event: Event, tensors: dict[int, int], last_ns: int
) -> Slice:
    tensor = trace.name(event.label)
    track = event.thread
    if tensor:
        track = tensors.setdefault(event.label, FIRST_TENSOR + event.label)
    category = "activity" if tensor else "compute"
    told = {"tensor": tensor} if tensor else {}
    name = trace.name(event.name)
    return Slice(track, name, category, event.begin_ns, last_ns, told)


def _device_slices(trace: Spool, events: Iterable[Event]) -> Iterable[Slice]:
    """Yield what devices did: copies, and calls of NCCL."""
    for event in events:
        if event.type == spool.DEVICE:
            track = FIRST_DEVICE + event.label
            span = (event.begin_ns, event.end_ns)
            told = {"bytes": event.a}
            yield Slice(track, trace.name(event.name), "device", *span, told)


def _lanes(trace: Spool, calls: Iterable[TracedCall], last_ns: int) -> Iterable[Slice]:
    """Yield the operations, each on the first track that is free then."""
    free = [0]
    busy: list[tuple[int, int]] = []
    shared = [call for call in calls if trace.name(call.kind) not in _LOCAL]
    for call in sorted(shared, key=lambda each: each.begin_ns):
        while busy and busy[0][0] <= call.begin_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free)
        if not free:
            heapq.heappush(free, len(busy) + 1)
        end_ns = last_ns if call.end_ns is None else call.end_ns
        heapq.heappush(busy, (end_ns, lane))
        track = FIRST_LANE + lane
        name = f"{trace.name(call.kind)} {trace.name(call.name)}"
        span = (call.begin_ns, max(call.begin_ns, end_ns))
        told = _describe(trace, call)
        yield Slice(track, name, "communicate", *span, told, call)
        for wait in call.waits:
            yield _wait_slice(track, wait, wait.begin_ns, wait.end_ns)


def _describe(trace: Spool, call: TracedCall) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if not is_one_sided(trace.name(call.kind)):
        told = {"group": f"{call.key[0]:x}", "sequence": call.key[1]}
    if call.nbytes is not None:
        told["bytes"] = call.nbytes
    if call.edges:
        edges = sorted(call.edges.items())
        told["bytes_sent"] = {f"{peer}": edge.bytes_sent for peer, edge in edges}
        told["bytes_received"] = {
            f"{peer}": edge.bytes_received for peer, edge in edges
        }
    if call.end_ns is None:
        told["unfinished"] = True
    elif call.code:
        told["failed"] = call.code
    return told


def _nest(slices: Iterable[Slice]) -> None:
    """Shorten slices that end after a slice that contains their begin, in place."""
    track, parents = -1, list[Slice]()
    for each in slices:
        if each.track != track:
            track, parents = each.track, []
        while parents and parents[-1].end_ns <= each.begin_ns:
            parents.pop()
        if parents:
            each.end_ns = min(each.end_ns, parents[-1].end_ns)
        parents.append(each)


def _track_name(trace: Spool, track: int, slices: Iterable[Slice]) -> str:
    if track >= FIRST_DEVICE:
        return trace.name(track - FIRST_DEVICE)
    if track >= FIRST_TENSOR:
        return f"tensor {trace.name(track - FIRST_TENSOR)}"
    if track >= FIRST_LANE:
        return f"communication {track - FIRST_LANE + 1}"
    if track == trace.header.main_thread:
        return "program"
    names = {each.name for each in slices if each.track == track}
    return "progress" if names == {COMPUTE_AVERAGE} else f"thread {track}"
