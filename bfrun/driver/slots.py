"""Decides in which slots of the hosts ranks are started, and with which numbers.

Does no I/O. docs/survival.md describes the states of a slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bfrun.driver.respawn import (
    FIRST_WAIT_S,
    MAX_LOSSES,
    WITHIN_S,
    HostSlot,
    Respawns,
)


class Slots:
    """The slots of a job, and the ranks that have, or had last, a process in each.

    A number of a rank that has no process any more belongs to no slot. It goes back to
    the slot that had it last if that gets a process again, and otherwise to any slot.

    Args:
        ranks: Slot of each rank at the start.
        most: The largest number of ranks with a process; None if only slots limit it.
        first_wait_s: Seconds from a loss to the next start in the slot.
    """

    def __init__(
        self,
        ranks: Mapping[int, HostSlot],
        most: int | None,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self._slot_of = dict(ranks)  # of the last process of each rank
        self._rank_in = {slot: rank for rank, slot in ranks.items()}
        # The slots that the job may use, in order.
        self._listed = list(ranks.values())
        self._most = most
        # Ranks whose last process is lost or has left.
        self._gone: set[int] = set()
        # Ranks of whose last process nothing is left, not even output.
        self._ended: set[int] = set()
        self._lost_hosts: set[int] = set()
        self._respawns = Respawns(first_wait_s)

    def slot_of(self, rank: int) -> HostSlot:
        """Return the slot in which the last process of a rank was started."""
        return self._slot_of[rank]

    def ranks_on(self, host: int) -> list[int]:
        """Return the ranks whose last processes were started on a host."""
        return sorted(r for r, slot in self._slot_of.items() if slot.host == host)

    def use(self, listed: Iterable[HostSlot]) -> None:
        """Use these slots from now on, in this order."""
        self._listed = list(listed)

    def unlisted(self) -> list[int]:
        """Return the ranks with processes in slots that are no longer to be used."""
        listed = set(self._listed)
        return sorted(
            rank
            for rank, slot in self._slot_of.items()
            if rank not in self._gone and slot not in listed
        )

    def lost(self, rank: int, now: float) -> str:
        """Note that the process of a rank is lost.

        Returns:
            Why its slot stays empty; empty if it does not, or if that is known.
        """
        self._gone.add(rank)
        if not self._respawns.lost(self._slot_of[rank], now):
            return ""
        return (
            f"the slot of rank {rank} has lost {MAX_LOSSES} processes within "
            f"{WITHIN_S:g} s, so it stays empty"
        )

    def left(self, rank: int) -> None:
        """Note that the process of a rank has left the job."""
        self._gone.add(rank)

    def has_ended(self, rank: int) -> None:
        """Note that nothing is left of the last process of a rank."""
        self._ended.add(rank)

    def close(self, slot: HostSlot) -> None:
        """Start nothing more in a slot."""
        self._respawns.close(slot)

    def is_closed(self, slot: HostSlot) -> bool:
        """Return whether nothing more is started in a slot."""
        return slot.host in self._lost_hosts or self._respawns.is_closed(slot)

    def close_host(self, host: int) -> None:
        """Start nothing more on a host, whose agent is lost."""
        self._lost_hosts.add(host)

    def due(
        self, now: float, *, may_grow: bool, size: int | None = None
    ) -> list[tuple[int, HostSlot]]:
        """Return the ranks that are to be started now, and where.

        Args:
            now: Seconds on the clock of ``lost``.
            may_grow: Whether ranks may be added to the numbers of the job.
            size: The numbers from this one on have never taken part in the job. They
                can only join in turn, so they belong to no slot, and the lowest one is
                started first. None if there are no such numbers.
        """
        free = self._gone & self._ended
        empty = [slot for slot in self._listed if self._is_empty(slot, free, now)]
        new = {rank for rank in free if size is not None and rank >= size}
        free -= new
        starts = []
        for slot in list(empty):
            rank = self._rank_in.get(slot)
            if rank in free and self._slot_of[rank] == slot:
                starts.append((rank, slot))
                free.discard(rank)
                empty.remove(slot)
        numbers = sorted(free)
        if may_grow:
            first = len(self._slot_of)
            # A number may be free soon, when all output of its process has arrived.
            last = first + len(empty)
            last = last if self._most is None else min(last, self._most)
            numbers += [*sorted(new), *range(first, last)]
        starts += zip(numbers, empty, strict=False)
        alive = len(self._slot_of) - len(self._gone)
        room = len(starts) if self._most is None else self._most - alive
        return starts[: max(room, 0)]

    def _is_empty(self, slot: HostSlot, free: set[int], now: float) -> bool:
        """Return whether a process may be started in a slot now."""
        if slot.host in self._lost_hosts or not self._respawns.is_due(slot, now):
            return False
        rank = self._rank_in.get(slot)
        # Another slot may have the number that this slot had last.
        return rank is None or rank in free or self._slot_of[rank] != slot

    def started(self, rank: int, slot: HostSlot, now: float) -> None:
        """Note that a process of a rank is started in a slot."""
        self._respawns.started(slot, now)
        self._slot_of[rank] = slot
        self._rank_in[slot] = rank
        self._gone.discard(rank)
        self._ended.discard(rank)
