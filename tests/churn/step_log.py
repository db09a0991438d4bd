"""A file in which a process notes each of its steps; a kill leaves it readable."""

from __future__ import annotations

import dataclasses
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct("<qqqq")
_EACH = struct.Struct("<dQ")


class Model(NamedTuple):
    """A model before a step.

    Attributes:
        applied: Number of updates that have been applied to it.
        digest: Checksum of its parameters; 0 if ranks may differ.
    """

    applied: float
    digest: int


class Step(NamedTuple):
    """The end of a step, on the clock of ``time.monotonic_ns``.

    Attributes:
        number: Its number, from 1.
        end_ns: When it ended.
        position: Number of samples that all ranks have taken, of all epochs.
        members: Number of ranks that train together.
        models: The models before it.
    """

    number: int
    end_ns: int
    position: int
    members: int
    models: tuple[Model, ...]


class StepWriter:
    """Notes the steps of this process, each with one system call.

    Args:
        folder: Folder of the job's logs.
        rank: Rank of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        name = f"{rank}-{time.monotonic_ns()}-{os.getpid()}.steps"
        self._fd = os.open(folder / name, flags, 0o600)

    def note(
        self, number: int, position: int, members: int, models: Sequence[Model]
    ) -> None:
        """Note the end of a step."""
        head = _HEAD.pack(number, time.monotonic_ns(), position, members)
        os.write(self._fd, head + b"".join(_EACH.pack(*model) for model in models))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@dataclasses.dataclass
class Life:
    """One process of a rank, and its steps so far.

    Attributes:
        rank: Its rank.
        began_ns: When it began to train, on the clock of ``time.monotonic_ns``.
        pid: Its process.
        steps: Its steps, in their order.
    """

    rank: int
    began_ns: int
    pid: int
    steps: list[Step] = dataclasses.field(default_factory=list)


class LogFolder:
    """Reads the logs of a job while they grow.

    Args:
        folder: Folder of the job's logs.
        models: Number of models that each rank trains.
    """

    def __init__(self, folder: Path, models: int) -> None:
        self._folder = folder
        self._size = _HEAD.size + models * _EACH.size
        self._lives: dict[Path, Life] = {}
        self._read: dict[Path, int] = {}

    def lives(self) -> list[Life]:
        """Return all processes so far, by rank and then in the order of their start."""
        for path in self._folder.glob("*.steps"):
            rank, began_ns, pid = map(int, path.stem.split("-"))
            life = self._lives.setdefault(path, Life(rank, began_ns, pid))
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = len(data) - len(data) % self._size
            for at in range(0, whole, self._size):
                life.steps.append(_step(data[at : at + self._size]))
            self._read[path] = self._read.get(path, 0) + whole
        return sorted(self._lives.values(), key=lambda one: (one.rank, one.began_ns))

    def latest(self) -> dict[int, Life]:
        """Return the last process of each rank."""
        return {life.rank: life for life in self.lives()}


def _step(data: bytes) -> Step:
    models = [Model(*each) for each in _EACH.iter_unpack(data[_HEAD.size :])]
    return Step(*_HEAD.unpack_from(data), tuple(models))
