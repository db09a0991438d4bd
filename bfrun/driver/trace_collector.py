"""Collects the traces of the ranks, compares clocks, and writes the timeline."""

from __future__ import annotations

import base64
import functools
import os
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path

from bfrun.errors import LaunchError
from bfrun.files import write_all
from bfrun.frames.agent_to_driver import ClockReading, TracePiece
from bfrun.frames.driver_to_agent import ReadClock
from bfrun.trace.clock import ClockEstimate
from bfrun.trace.merge import Source, merge_file
from bfrun.wording import count, format_ranks

# Clocks are compared often at first, so that a short job has a good estimate, and less
# often later, because they drift.
_QUICK_S = 0.2
_QUICK_COUNT = 20
_SLOW_S = 2.0

# Far above any sensible trace size. Data beyond this is dropped.
_MAX_RANK_NBYTES = 1 << 30


class TraceCollector:
    """The timeline of one job.

    Args:
        filename: File to write it to.
        hosts: Host name of each rank.
        host_count: Number of agents. With one, there is only one clock.

    Raises:
        LaunchError: There is no temporary file for the traces.
    """

    def __init__(
        self, filename: str, hosts: Mapping[int, str], host_count: int
    ) -> None:
        self._target = Path(filename)
        self._hosts = hosts
        self._clocks = {host: ClockEstimate() for host in hosts.values()}
        self._compares = host_count > 1
        self._asked = 0
        self._ask_at = 0.0
        self._file = _temporary_file()
        self._unstored: OSError | None = None
        self._received: dict[int, int] = {}
        self._pieces: dict[tuple[int, str], list[tuple[int, int]]] = {}
        self.heard_at = 0.0

    def question(self, now: float) -> ReadClock | None:
        """Return the frame to send to all agents, or None if none is due."""
        if not self._compares or now < self._ask_at:
            return None
        self._asked += 1
        self._ask_at = now + (_QUICK_S if self._asked < _QUICK_COUNT else _SLOW_S)
        return ReadClock(sent_ns=time.monotonic_ns())

    def take_reading(self, host: str, frame: ClockReading) -> None:
        """Store a reading of an agent's clock. Call it as soon as the frame arrives."""
        self._clocks[host].add(
            frame.sent_ns, frame.received_ns, frame.replied_ns, time.monotonic_ns()
        )

    def take(self, frame: TracePiece) -> None:
        """Store a piece of the trace of a rank.

        If a piece cannot be stored, all later pieces are dropped, and ``finish``
        reports the error.
        """
        self.heard_at = time.monotonic()
        rank = frame.rank
        room = _MAX_RANK_NBYTES - self._received.get(rank, 0)
        packed = base64.b64decode(frame.data, validate=True)
        data = zlib.decompressobj().decompress(packed, max(1, room))
        self._received[rank] = self._received.get(rank, 0) + len(data)
        if self._unstored is not None:
            return
        try:
            start = self._file.seek(0, os.SEEK_END)
            write_all(self._file.fileno(), data)
        except OSError as error:
            self._unstored = error
            return
        pieces = self._pieces.setdefault((rank, frame.file), [])
        pieces.append((start, len(data)))

    def finish(self) -> str:
        """Write the timeline, and return a remark for the user."""
        sources = [
            Source(
                name=f"trace of rank {rank}",
                read=functools.partial(self._read, pieces),
                host=self._hosts[rank],
                clock=self._clocks[self._hosts[rank]],
            )
            for (rank, _), pieces in self._pieces.items()
        ]
        if not sources and self._unstored is not None:
            return f"no timeline was written: {_unstored_text(self._unstored)}"
        if not sources:
            return (
                "no timeline was written: no rank has recorded anything (none has "
                "called bluecomm.init)"
            )
        try:
            merged = merge_file(sources, self._target)
        except OSError as error:
            return f"no timeline was written to '{self._target}': {error}"
        remarks = [f"timeline of {_ranks(merged.ranks)} in {self._target}"]
        missing = sorted(set(self._hosts) - set(merged.ranks))
        if missing:
            remarks.append(f"it lacks {_ranks(missing)}")
        if self._unstored is not None:
            remarks.append(f"it is incomplete: {_unstored_text(self._unstored)}")
        if merged.dropped:
            remarks.append(
                f"the oldest {count(merged.dropped, 'event')} did not fit "
                "(BLUECOMM_TIMELINE_BYTES sets the size)"
            )
        if merged.error_ns:
            remarks.append(f"clocks agree within {merged.error_ns / 1e6:.2f} ms")
        return "; ".join([*remarks, *merged.broken])

    def close(self) -> None:
        """Delete the collected traces."""
        self._file.close()

    def _read(self, pieces: Sequence[tuple[int, int]], nbytes: int) -> bytes:
        parts = []
        for start, length in pieces:
            self._file.seek(start)
            parts.append(self._file.read(min(length, nbytes)))
            nbytes -= len(parts[-1])
        return b"".join(parts)


def _temporary_file() -> FileIO:
    """Return a file without a name, which vanishes even if the driver is killed."""
    try:
        return tempfile.TemporaryFile(buffering=0)
    except OSError as error:
        raise LaunchError(f"--timeline-filename: {_unstored_text(error)}") from error


def _unstored_text(error: OSError) -> str:
    return (
        f"traces could not be stored in '{tempfile.gettempdir()}': {error.strerror}; "
        "free space there, or set TMPDIR to another folder"
    )


def _ranks(ranks: Sequence[int]) -> str:
    return format_ranks(sorted(set(ranks)), noun=True)
