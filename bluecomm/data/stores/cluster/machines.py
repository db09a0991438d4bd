"""The ranks and machines of a store, as one rank sees them."""

from __future__ import annotations

import time
from collections.abc import Callable

from bluecomm.data.stores.cluster.owners import owner_of

# A rank that did not answer is asked again after this time.
_PAUSE_S = 30.0


class CacheMachines:
    """Chooses the rank that is asked for a key.

    Args:
        rank: This rank.
        machine_of: Machine of each rank, to which newcomers are added.
        clock: Returns the time in seconds.

    Attributes:
        own: Number of this rank's machine, which is in use because this rank is.
        machine_of: Machine of each rank.
    """

    def __init__(
        self,
        rank: int,
        machine_of: dict[int, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.own = machine_of[rank]
        self.machine_of = machine_of
        self._rank = rank
        self._clock = clock
        self._left = set(machine_of)
        self._silent_until: dict[int, float] = {}

    @property
    def ranks_left(self) -> list[int]:
        """The ranks that have not gone, in ascending order."""
        return sorted(self._left)

    def is_lost(self, machine: int) -> bool:
        """Return whether all ranks of a machine have gone."""
        return all(self.machine_of[rank] != machine for rank in self._left)

    def lose(self, rank: int) -> bool:
        """Note that a rank has gone; return whether that is news."""
        if rank == self._rank or rank not in self._left:
            return False
        self._left.discard(rank)
        return True

    def join(self, rank: int, machine: int) -> None:
        """Use a newcomer, or a rank that a newcomer has met."""
        self.machine_of[rank] = machine
        self._left.add(rank)

    def mute(self, rank: int) -> bool:
        """Do without a rank for some time; return whether it was in use."""
        was_in_use = rank in self._in_use()
        self._silent_until[rank] = self._clock() + _PAUSE_S
        return was_in_use

    def _in_use(self) -> set[int]:
        """Return the ranks that are asked."""
        if not self._silent_until:
            return self._left
        now = self._clock()
        silent = {rank for rank, until in self._silent_until.items() if until > now}
        return (self._left - silent) | {self._rank}

    def owner_of(self, key: int) -> int:
        """Return the machine that owns a key, among those in use."""
        return owner_of(key, {self.machine_of[rank] for rank in self._in_use()})

    def server_of(self, machine: int) -> int:
        """Return the rank through which a machine is asked: its lowest one in use."""
        return min(rank for rank in self._in_use() if self.machine_of[rank] == machine)
