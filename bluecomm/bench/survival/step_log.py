"""A file in which a rank notes each of its steps; a kill leaves it readable.

Each record has the number of the step, the monotonic time at its end, and the smallest
and largest parameter. All processes of a machine share that clock.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_RECORD = struct.Struct("<qqdd")


class Step(NamedTuple):
    """The end of a step, on the clock of ``time.monotonic_ns``."""

    number: int
    end_ns: int
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class StepLog:
    """The steps of one process.

    Attributes:
        rank: Its rank.
        pid: Its process.
        steps: Its steps, in their order; the first is the one with which it began.
    """

    rank: int
    pid: int
    steps: tuple[Step, ...]


class StepWriter:
    """Notes the steps of this process, each with one system call.

    Args:
        folder: Folder of the job's logs.
        rank: Rank of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(folder / f"{rank}-{os.getpid()}.steps", flags, 0o600)

    def note(self, number: int, values: Iterable[float]) -> None:
        """Note the end of a step."""
        found = list(values)
        end_ns = time.monotonic_ns()
        os.write(self._fd, _RECORD.pack(number, end_ns, min(found), max(found)))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_logs(folder: Path) -> list[StepLog]:
    """Return the logs of a job so far, by rank and then in the order of their start.

    A process that has noted nothing yet is the last of its rank.
    """
    logs = []
    for path in folder.glob("*.steps"):
        rank, _, pid = path.stem.partition("-")
        data = path.read_bytes()
        whole = len(data) - len(data) % _RECORD.size
        steps = tuple(map(Step._make, _RECORD.iter_unpack(data[:whole])))
        logs.append(StepLog(int(rank), int(pid), steps))
    return sorted(logs, key=_begin_of)


def _begin_of(log: StepLog) -> tuple[int, float]:
    return log.rank, log.steps[0].end_ns if log.steps else math.inf


class Beginning(NamedTuple):
    """When a process has begun, on the clock of ``time.monotonic_ns``.

    Attributes:
        process_ns: When the process was started, within 10 ms.
        init_ns: When it called ``init``.
    """

    process_ns: int
    init_ns: int


def note_beginning(folder: Path, rank: int) -> None:
    """Note the beginning of this process, which is about to call ``init``."""
    init_ns = time.monotonic_ns()
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - (
        int(fields[19]) * 10**9 // os.sysconf("SC_CLK_TCK")
    )
    path = folder / f"{rank}-{os.getpid()}.begin"
    path.write_text(json.dumps(Beginning(init_ns - age_ns, init_ns)))


def read_beginning(folder: Path, log: StepLog) -> Beginning:
    """Return when the process of a log has begun.

    Raises:
        OSError: It has not noted it.
    """
    path = folder / f"{log.rank}-{log.pid}.begin"
    return Beginning(*json.loads(path.read_text()))
