"""Checkpoints of all ranks; a resumed run loads the last complete set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

import bluecomm as bf


class Checkpoints:
    """A file per rank and epoch in a folder that outlives the job.

    With parameter averaging every rank has its own model and state. A job that dies
    while saving leaves an incomplete set, so the previous set is kept until all ranks
    have saved.

    Args:
        folder: A folder on each host, or shared by all.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def _path(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch:04d}-rank-{bf.rank()}-of-{bf.size()}.pt"

    def _epochs(self) -> list[int]:
        pattern = re.compile(rf"epoch-(\d+)-rank-{bf.rank()}-of-{bf.size()}\.pt\Z")
        found = (pattern.match(path.name) for path in self._folder.iterdir())
        return [int(match[1]) for match in found if match]

    def save(self, epoch: int, state: dict[str, Any]) -> None:
        """Save this rank's state after ``epoch`` epochs. Every rank must call it."""
        path = self._path(epoch)
        unfinished = path.with_suffix(".new")
        torch.save(state, unfinished)
        unfinished.replace(path)
        bf.barrier()
        for old in self._epochs():
            if old < epoch:
                self._path(old).unlink()

    def latest(self) -> int:
        """Return the last epoch that all ranks have saved, 0 for none.

        Every rank must call it.
        """
        common = set.intersection(*map(set, bf.allgather_object(self._epochs())))
        return max(common, default=0)

    def load(self, epoch: int) -> dict[str, Any]:
        """Return the state that this rank saved after ``epoch`` epochs."""
        state: dict[str, Any] = torch.load(self._path(epoch), weights_only=True)
        return state
