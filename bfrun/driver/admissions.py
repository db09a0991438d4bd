"""Decides when newcomers join the running job, one generation at a time. Does no I/O.

A generation is a world of all ranks, some of which may be missing. The ranks make the
next generation while they train in the present one, and change to it when all newcomers
are ready. A generation has more ranks than the one before if newcomers have numbers
above all others (docs/survival.md).
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from bfrun.driver.record_table import MAX_TABLE_NBYTES, Answers
from bfrun.frames.driver_to_rank import Invite, JoinCancelled, JoinOpen, JoinTable


@dataclass
class _Generation:
    number: int
    size: int
    newcomers: set[int]
    # Whether a lineage becomes the primary by it, as the primary is lost.
    adopts: bool
    # The ranks that take part and have not ended, newcomers among them.
    ranks: set[int]
    records: dict[int, Any] = field(default_factory=dict)
    has_met: bool = False
    ready: set[int] = field(default_factory=set)
    is_open: bool = False
    moved: set[int] = field(default_factory=set)


class Admissions:
    """The newcomers of one job, and the generation that is being made for them.

    Args:
        size: Number of ranks at the start.

    Attributes:
        size: Number of ranks of the newest generation, of those that are missing, too.
        present: The ranks that take part in the job.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.present = set(range(size))
        self._stays = [0] * size
        self._willing: set[int] = set()
        # Ranks that can let in newcomers with numbers above all others.
        self._growing: set[int] = set()
        self._waiting: set[int] = set()
        # Ranks that train in a lineage of their own, with its name. They wait, too.
        self._apart: dict[int, str] = {}
        # Ranks of which nobody knows yet in which lineage they train, with the
        # generation whose primary they may have left.
        self._unsure: dict[int, int] = {}
        # Ranks that have said so since they have joined.
        self._told: set[int] = set()
        # The generation in which each rank trains, if it is not the first one.
        self._generation_of: dict[int, int] = {}
        self._has_finished = False
        # Whether a lineage has become the primary, but no generation has begun since.
        self._has_adopted = False
        self._current: _Generation | None = None
        self._number = 0
        # Newcomers that have met the others of a cancelled generation, with the reason.
        self._stranded: dict[int, str] = {}

    @property
    def is_possible(self) -> bool:
        """Whether all ranks that take part can let newcomers in."""
        return (
            bool(self.present)
            and self.present <= self._willing
            and self.present.isdisjoint(self._unsure)
        )

    @property
    def apart(self) -> frozenset[int]:
        """The ranks that train in a lineage of their own."""
        return frozenset(self._apart)

    @property
    def may_grow(self) -> bool:
        """Whether they can also let ranks in that the job has not had before."""
        return self.is_possible and self.present <= self._growing

    @property
    def joining(self) -> frozenset[int]:
        """The newcomers of the generation to which ranks change now."""
        current = self._current
        if current is None or not current.is_open:
            return frozenset()
        return frozenset(current.newcomers)

    def set_willing(
        self, rank: int, willing: bool, grows: bool = False, has_ended: bool = False
    ) -> Answers:
        """Note whether a rank can let newcomers in.

        Args:
            rank: The rank.
            willing: Whether it can.
            grows: Whether these may be ranks that the job has not had before.
            has_ended: Whether its training is over, so that it leaves the generation
                that is being made.
        """
        (self._growing.add if willing and grows else self._growing.discard)(rank)
        (self._willing.add if willing else self._willing.discard)(rank)
        current = self._current
        if current is None or current.is_open or rank not in current.ranks:
            return self._invite()
        if has_ended:
            return self._end_training(current, rank)
        if not willing:
            return self._cancel(f"rank {rank} cannot let newcomers in")
        if current.size > self.size and not grows:
            return self._cancel(f"rank {rank} cannot let in ranks with new numbers")
        return []

    def _end_training(self, current: _Generation, rank: int) -> Answers:
        text = f"the training of rank {rank} has ended"
        if not current.has_met:
            return self._cancel(text)
        current.ranks.discard(rank)
        current.newcomers.discard(rank)
        if current.ranks <= current.newcomers and not current.adopts:
            # Unless a lineage takes over, the job ends, and the newcomers with it.
            return self._cancel(text, strands=bool(self._apart))
        return self._open(current)

    def take_stranded(self) -> dict[int, str]:
        """Return the newcomers that must be started again, with the reason, once.

        Such a newcomer has made a generation that was cancelled. It may have built a
        model and an optimizer in it, so it cannot take part in another one.
        """
        stranded, self._stranded = self._stranded, {}
        return stranded

    def respawned(self, rank: int, stay: int) -> None:
        """Note that a process of a rank is started, with the number ``stay``."""
        self._stays += [0] * (rank + 1 - len(self._stays))
        self._stays[rank] = stay

    def asked(self, rank: int) -> Answers:
        """Note that a newcomer waits for its invitation."""
        if rank not in self.present:
            self._waiting.add(rank)
        return self._invite()

    def doubt(self, rank: int, generation: int) -> bool:
        """Note that others have excluded a rank, which will say how it goes on.

        Args:
            rank: The rank.
            generation: The generation in which they have excluded it.

        Returns:
            Whether the rank takes part in this generation, and has not said so yet.
        """
        current = self._current
        changes = (
            current is not None
            and generation == current.number
            and rank in current.ranks - current.moved
        )
        if not changes and generation != self._generation_of.get(rank, 0):
            return False
        if rank not in self.present - self._told:
            return False
        self._unsure[rank] = generation
        return True

    def split(
        self, rank: int, lineage: str, generation: int, members: Collection[int]
    ) -> Answers:
        """Note that a rank trains in a lineage of its own, and waits to join again.

        Args:
            rank: The rank.
            lineage: Name of the lineage.
            generation: The generation that it has left by this.
            members: The ranks that have begun the lineage.
        """
        self._settle(rank, generation)
        current = self._current
        if current is not None and generation == current.number:
            if not current.is_open:
                return self._cancel(f"rank {rank} cannot reach the others")
            # It goes on in a world that has split at once.
            current.ranks.discard(rank)
            current.newcomers.discard(rank)
            self._generation_of[rank] = generation
            self._leave(rank, lineage, generation, members)
            return self._finish(current)
        if generation != self._generation_of.get(rank, 0):
            return self._invite()  # it has left that world
        if current is None or rank not in current.ranks:
            self._leave(rank, lineage, generation, members)
            return self._invite()
        if current.is_open:
            return []  # it changes to a world that need not have split
        self._leave(rank, lineage, generation, members)
        current.newcomers.discard(rank)
        return self._cancel(f"rank {rank} trains apart from the others")

    def _settle(self, rank: int, generation: int) -> None:
        """Note that a rank goes on otherwise than in the primary of a generation."""
        if self._unsure.get(rank, generation + 1) <= generation:
            del self._unsure[rank]

    def _leave(
        self, rank: int, lineage: str, generation: int, members: Collection[int]
    ) -> None:
        self.present.discard(rank)
        self._apart[rank] = lineage
        self._told.add(rank)
        for other in self.present & set(members) - self._told:
            self._unsure[other] = generation
        self._waiting.add(rank)

    def publish(self, rank: int, generation: int, record: Any) -> Answers:
        """Take a rank's record for a generation; answer all after the last record."""
        current = self._current
        if current is None or generation != current.number or current.has_met:
            return []
        current.records[rank] = record
        if current.records.keys() < current.ranks:
            return []
        if len(json.dumps(current.records)) > MAX_TABLE_NBYTES:
            self._willing.clear()  # another generation would end in the same way
            return self._cancel("the records of the ranks are too large")
        current.has_met = True
        records = [current.records.get(rank) for rank in range(current.size)]
        table = JoinTable(generation=generation, records=records)
        return [(sorted(current.ranks), table)]

    def ready(self, rank: int, generation: int) -> Answers:
        """Note that a rank has made the new generation; a newcomer awaits its state."""
        current = self._current
        if current is None or generation != current.number:
            return []
        current.ready.add(rank)
        return self._open(current)

    def moved(self, rank: int, generation: int) -> tuple[bool, Answers]:
        """Note that a rank has changed to a generation.

        Returns:
            Whether it has joined the job by this, and the frames to send.
        """
        current = self._current
        if current is None or generation != current.number:
            return False, []
        current.moved.add(rank)
        if rank in current.ranks:
            self._generation_of[rank] = generation
            self._told.discard(rank)
            self._settle(rank, generation - 1)
        has_joined = rank in current.newcomers and rank in current.ranks
        if has_joined:
            self.present.add(rank)
            self._apart.pop(rank, None)
        return has_joined, self._finish(current)

    def ended(self, rank: int, has_finished: bool = False) -> Answers:
        """Note that a rank or a newcomer has ended; perhaps its training has, too."""
        self._has_finished |= has_finished and rank in self.present
        self.present.discard(rank)
        self._apart.pop(rank, None)
        self._unsure.pop(rank, None)
        self._generation_of.pop(rank, None)
        self._told.discard(rank)
        self._willing.discard(rank)
        self._growing.discard(rank)
        self._waiting.discard(rank)
        current = self._current
        if current is None and self._apart:
            return self._invite()  # perhaps it has waited for this rank
        if current is None or rank not in current.ranks:
            return []
        current.ranks.discard(rank)
        current.newcomers.discard(rank)
        if current.is_open:
            return self._finish(current)
        if not current.has_met:
            return self._cancel(f"rank {rank} has ended")
        if not (current.newcomers or current.adopts):
            return self._cancel("no newcomer is left")
        return self._open(current)

    def _invite(self) -> Answers:
        """Begin a generation if newcomers wait; other ranks may be missing."""
        if self._current is not None:
            return []
        self._has_adopted |= self._adopt()
        adopts = self._has_adopted
        if not self.is_possible:
            return []
        size = self.size
        # A rank without a record cannot be missing, so new numbers come in turn.
        while size in self._waiting and self.may_grow:
            size += 1
        newcomers = {
            rank
            for rank in self._waiting
            if rank < size and (rank not in self._apart or rank in self._willing)
        }
        if not (newcomers or adopts):
            return []
        everybody = self.present | newcomers
        missing = [rank for rank in range(size) if rank not in everybody]
        self._number += 1
        self._waiting -= newcomers
        self._current = _Generation(self._number, size, newcomers, adopts, everybody)
        invite = Invite(
            generation=self._number,
            newcomers=sorted(newcomers),
            stays=[-1 if r in missing else self._stays[r] for r in range(size)],
            missing=missing,
            sides=self._sides(newcomers, size),
        )
        return [(sorted(everybody), invite)]

    def _adopt(self) -> bool:
        """Have the largest lineage be the primary if all of its ranks are lost.

        If they have finished, the training is over, and nothing takes its place.
        """
        if self.present or self._has_finished or not self._apart:
            return False
        ranks: dict[str, set[int]] = {}
        for rank, lineage in self._apart.items():
            ranks.setdefault(lineage, set()).add(rank)
        largest = max(ranks.values(), key=lambda those: (len(those), -min(those)))
        if not largest <= self._willing:
            return False
        for rank in largest:
            del self._apart[rank]
        self._waiting -= largest
        self.present |= largest
        return True

    def _sides(self, newcomers: set[int], size: int) -> list[int]:
        """Return the side of a partition of each rank; empty without a partition."""
        lineages = sorted({self._apart[r] for r in newcomers if r in self._apart})
        if not lineages:
            return []
        number = {lineage: side for side, lineage in enumerate(lineages, 1)}
        return [
            number[self._apart[rank]] if rank in newcomers & self._apart.keys() else 0
            for rank in range(size)
        ]

    def _open(self, current: _Generation) -> Answers:
        if current.is_open or not current.ranks <= current.ready:
            return []
        current.is_open = True
        if current.adopts:
            self._has_adopted = False
        self.size = current.size
        frame = JoinOpen(generation=current.number)
        return [(sorted(current.ranks), frame)]

    def _finish(self, current: _Generation) -> Answers:
        """Begin the next generation once all ranks have changed to this one."""
        if not current.ranks <= current.moved:
            return []
        self._current = None
        return self._invite()

    def _cancel(self, text: str, *, strands: bool = True) -> Answers:
        current = self._current
        assert current is not None
        self._current = None
        # A rank that trains apart keeps its world, and may join with another one.
        stranded = current.newcomers - self._apart.keys() if current.has_met else set()
        self._waiting |= current.newcomers - stranded
        if strands:
            self._stranded |= dict.fromkeys(stranded, text)
        frame = JoinCancelled(generation=current.number, text=text)
        return [(sorted(current.ranks), frame), *self._invite()]
