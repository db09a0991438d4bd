"""Records the events of a process in a file, if a timeline is requested."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bluecomm.device.staging_table import await_trace, trace_devices

if TYPE_CHECKING:
    from bluecomm._native import Recorder
    from bluecomm.config import Config
    from bluecomm.runtime.rendezvous.rendezvous import Assignment

# Value of BLUECOMM_TIMELINE that lets the program start and stop timelines.
DYNAMIC = "DYNAMIC"

_log = logging.getLogger("bluecomm")


class Recording:
    """The recorder of one process and its file.

    For a timeline of all ranks, bfrun collects the file. If ``BLUECOMM_TIMELINE`` is
    set, ``complete`` converts the file to a timeline of this rank. Several worlds of a
    process share one recording, unless the variable changes.

    Attributes:
        recorder: Recorder of events, or ``None`` if no timeline is requested.

    Raises:
        OSError: The file cannot be made.
    """

    def __init__(self, config: Config, assignment: Assignment) -> None:
        self.recorder: Recorder | None = None
        self._prefix = config.timeline
        self._rank = assignment.rank
        self._host = assignment.host
        self._pid = os.getpid()
        self._is_complete = False
        self._excerpt: tuple[Path, int] | None = None  # file, and begin on the clock
        self._is_collected = assignment.trace
        if assignment.trace:
            name = f"trace-{assignment.rank}-{os.getpid()}"
            self._path = Path(assignment.socket_dir) / name
        elif config.timeline == DYNAMIC:
            name = f"timeline-{assignment.rank}-{os.getpid()}"
            self._path = Path(assignment.socket_dir) / name
        elif config.timeline is not None:
            self._path = Path(f"{config.timeline}{assignment.rank}.trace")
        else:
            return
        try:
            self.recorder = self._open(config.timeline_bytes, assignment)
        except OSError as error:
            raise OSError(_refusal(assignment.rank, config, error)) from error
        trace_devices(self.recorder)

    @property
    def _target(self) -> Path | None:
        """The file for the timeline of this rank alone."""
        if self._prefix in (None, DYNAMIC):
            return None
        return Path(f"{self._prefix}{self._rank}.json")

    def _open(self, nbytes: int, assignment: Assignment) -> Recorder:
        from bluecomm._native import Recorder

        if self._target is not None and self._target.is_dir():
            raise IsADirectoryError(f"{self._target} is a folder")
        self._path.unlink(missing_ok=True)
        return Recorder(
            path=str(self._path),
            nbytes=nbytes,
            rank=assignment.rank,
            size=assignment.size,
        )

    def resume(self, prefix: str | None) -> bool:
        """Prepare for another world; return whether the recording fits its setting."""
        if prefix != self._prefix and not self._is_collected:
            return False
        self._prefix = prefix
        self._is_complete = False
        if self.recorder is not None:
            trace_devices(self.recorder)
        return True

    def complete(self) -> None:
        """Write the timeline of this rank if one is requested and has new events."""
        if self.recorder is None or os.getpid() != self._pid:
            return
        target = self._target
        try:
            try:
                self.end_excerpt()
            finally:
                trace_devices(None)
            if target is not None and not self._is_complete:
                self._write(target)
                self._is_complete = True
        except OSError as error:
            _log.error("cannot write a timeline: %s", error)

    def begin_excerpt(self, target: Path) -> None:
        """Begin a timeline of the events from now on; write the previous one first.

        Raises:
            OSError: The previous timeline cannot be written.
        """
        self.end_excerpt()
        self._excerpt = target, time.monotonic_ns()

    def end_excerpt(self) -> None:
        """Write the timeline that has begun, if there is one.

        Raises:
            OSError: The file cannot be written.
        """
        excerpt, self._excerpt = self._excerpt, None
        if excerpt is not None:
            await_trace()
            self._write(*excerpt)

    def _write(self, target: Path, begin_ns: int = 0) -> None:
        from bfrun.trace.clock import ClockEstimate
        from bfrun.trace.merge import Source, merge_file
        from bfrun.trace.spool import Spool, pack

        def read(nbytes: int) -> bytes:
            packed = pack(self._path.read_bytes())
            return (Spool(packed).since(begin_ns) if begin_ns else packed)[:nbytes]

        merge_file([Source(self._path.name, read, self._host, ClockEstimate())], target)

    def finish(self) -> None:
        """Complete the timeline, and stop recording."""
        self.complete()
        recorder, self.recorder = self.recorder, None
        if recorder is None:
            return
        is_needed = self._is_collected or not (
            self._is_complete or self._target is None
        )
        if not is_needed and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                self._path.unlink()


def _refusal(rank: int, config: Config, error: OSError) -> str:
    remedy = "start the job without --timeline-filename, or with another TMPDIR"
    if config.timeline is not None:
        remedy = (
            f"set BLUECOMM_TIMELINE (now {config.timeline!r}) to the beginning of a "
            "path in a folder that exists and is writable"
        )
    return f"init on rank {rank}: cannot record a timeline: {error}; {remedy}"
