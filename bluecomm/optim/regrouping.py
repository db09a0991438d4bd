"""Agrees on the round from which an optimizer goes on with the ranks that are left.

The neighbors of a lost rank go on without it at once, each when it notices the loss.
But a new graph must begin with the same round on all ranks, because each message needs
a receiver. docs/survival.md has the protocol and its states.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence

import torch

from bluecomm.errors import BluecommError, CommunicationTimeout
from bluecomm.ops.allreduce import allreduce_nonblocking
from bluecomm.ops.reduce_op import Max
from bluecomm.runtime import Communicator, Handle

_log = logging.getLogger("bluecomm")

# A rank begins at most this many rounds between its proposal and the decision.
LEAD = 16


class Regrouping:
    """The agreement of the ranks of one optimizer, which it keeps for its whole life.

    When the ranks have decided that one has gone, the thread that learns of it starts
    an allreduce among the ranks that are left: the highest round that any of them has
    begun, plus ``lead``, is the first round of the new graph. Until a rank knows the
    result, it begins no round that may belong to the new graph. If another rank goes
    meanwhile, the next allreduce also carries the decisions that some ranks have heard
    and others have not, so all ranks make the same changes.

    Args:
        comm: Ranks that take part at first.
        name: Prefix of the operations' names, equal on all ranks.
        lead: The number of rounds by which the first round of the new graph follows the
            highest round that was begun. Ranks may begin the rounds between them while
            they agree.
        begun: The last round that this rank has begun.
        opens: Whether the ranks also agree on a first round before any rank has gone.
            They have agreed once all of them have made the object.
        sides: The side of a partition on which each rank has trained, from 0. The ranks
            of a side agree on a first round of their own, as the sides have begun
            different numbers of rounds. Empty if there is only one side.
    """

    def __init__(
        self,
        comm: Communicator,
        name: str,
        lead: int = LEAD,
        *,
        begun: int = 0,
        opens: bool = False,
        sides: Sequence[int] = (),
    ) -> None:
        self._comm = comm
        self._name = name
        self._lead = lead
        self._members = comm.world.members
        self._changed = threading.Condition()
        self._opens = opens
        self._sides = max(sides, default=0) + 1
        self._side = sides[comm.world.rank] if sides else 0
        self._round = begun  # the last round that this rank has begun
        self._bound: int | None = None  # rounds from here on wait for a decision
        # Number of ranks that had gone when it last proposed; -1 if that has failed.
        self._asked = -1
        # Groups of the agreements since the last decision, by that number.
        self._groups: dict[int, Communicator] = {}
        # First rounds that have been decided, by the number of ranks that had gone.
        self._decided: dict[int, int] = {}
        # The largest such number whose round has begun.
        self._done = -1 if opens else 0
        self._stop = self._members.listen(self._propose)
        if opens:
            self._propose()

    def begin_round(self, number: int) -> tuple[int, ...] | None:
        """Note that a round begins; wait first if it may belong to a new graph.

        Returns:
            The members that are left, if the graph changes with this round.

        Raises:
            CommunicationTimeout: The other ranks have not agreed in time.
        """
        with self._changed:
            if not self._members.gone and not self._opens:
                self._round = number
                return None
        self._propose()
        with self._changed:
            self._await_decision(number)
            self._round = number
            due = [
                count
                for count, first in self._decided.items()
                if count > self._done and first <= number
            ]
            if not due:
                return None
            self._done = max(due)
            return self._left(self._done)

    def first(self) -> int:
        """Wait for the first round on which the ranks have agreed, and return it.

        Raises:
            CommunicationTimeout: The other ranks have not agreed in time.
        """
        with self._changed:
            self._await_decision(self._bound or 0)
            return min(self._decided.values())

    def close(self) -> None:
        """Take part in no more agreements."""
        with contextlib.suppress(ValueError):  # it was closed before
            self._stop()
        self._free_groups()

    def _left(self, count: int) -> tuple[int, ...]:
        """Return the members that were left when ``count`` ranks had gone."""
        gone = self._members.gone[:count]
        return tuple(m for m, rank in enumerate(self._comm.ranks) if rank not in gone)

    def _await_decision(self, number: int) -> None:
        world = self._comm.world
        deadline = time.monotonic() + world.config.operation_timeout_s
        while self._bound is not None and number >= self._bound:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or world.is_closed:
                raise CommunicationTimeout.describe(
                    "the ranks that are left have not agreed on the first round of "
                    "their new graph",
                    operation="DistributedOptimizer",
                    name=self._name,
                    rank=world.rank,
                    remedy="Another rank may have stopped; look at the ranks' output",
                )
            self._changed.wait(min(left_s, 1.0))

    def _propose(self) -> None:
        """Start the agreement, unless it has begun since the last rank went."""
        with self._changed:
            count = len(self._members.gone)
            if count == self._asked or self._comm.world.is_closed:
                return
            if count == 0 and not self._opens:
                return
            self._asked = count
            left = self._left(count)
            begun = self._round
            bound = begun + self._lead
            self._bound = bound if self._bound is None else min(bound, self._bound)
            known = [self._decided.get(number, 0) for number in range(count)]
        world = self._comm.world
        ranks = [self._comm.ranks[member] for member in left]
        # A second attempt has the group of the first, as on the other ranks.
        group = self._groups.get(count)
        if group is None:
            group = Communicator(world, ranks, owner=f"{self._name}.{count}")
            self._groups[count] = group
        # Each side has a row, in which the other sides take no part.
        told = torch.zeros(self._sides, 1 + count, dtype=torch.int64)
        told[self._side] = torch.tensor([begun, *known])
        try:
            handle = allreduce_nonblocking(
                told,
                op=Max,
                name=f"{self._name}.regroup",
                process_set=group,
            )
            handle.on_finish(lambda: self._take(count, handle))
        except BluecommError as error:
            self._ask_again(count, error)

    def _ask_again(self, count: int, error: BluecommError) -> None:
        """Let the next round propose again what could not be agreed.

        Operations may be suspended, or a link between two living ranks may have broken.
        """
        _log.info("rank %d: %s", self._comm.world.rank, error)
        with self._changed:
            if self._asked == count:
                self._asked = -1

    def _take(self, count: int, handle: Handle[torch.Tensor]) -> None:
        """Take the decision of an agreement, unless a member was lost meanwhile."""
        try:
            begun, *known = handle.wait()[self._side].tolist()
        except BluecommError as error:
            self._ask_again(count, error)
            return
        with self._changed:
            if count != self._asked:
                # The later proposal has said that this rank does not know the result.
                return
            decided = {number: first for number, first in enumerate(known) if first > 0}
            decided[count] = max([begun + self._lead, *decided.values()])
            self._decided.update(decided)
            self._bound = None
            self._changed.notify_all()
        self._free_groups()

    def _free_groups(self) -> None:
        with self._changed:
            groups, self._groups = self._groups, {}
        for group in groups.values():
            with contextlib.suppress(BluecommError, ValueError):
                group.free()
