"""Agrees, after a loss, on the open transactions and on the group that goes on.

docs/survival.md has the protocol and its states. The thread that reports losses makes a
communicator leave its epoch, and a thread of its own agrees with the other members that
are left on the next one. ``transactions.py`` runs the calls in between.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from bfrun.wording import count, format_ranks
from bluecomm.errors import BluecommError, ShutdownError
from bluecomm.runtime.call import Call
from bluecomm.runtime.epochs.exchange import exchange
from bluecomm.runtime.epochs.group import Group
from bluecomm.runtime.epochs.transactions import LOOK_S, REPORT_S, Transactions
from bluecomm.runtime.handle import RequestHandle

_log = logging.getLogger("bluecomm")

# How long the last messages of a member that has finished may be on their way.
_LAST_BYTES_S = 0.5
# Time between two looks for them.
_LOOK_AGAIN_S = 0.02


class Epochs:
    """The epochs of one communicator: who takes part in its transactions.

    Args:
        comm: The communicator.
        make_group: Makes the group of an epoch from its ranks and a name for it.

    Attributes:
        transactions: The transactions of its collectives.
    """

    def __init__(
        self,
        comm: Group,
        make_group: Callable[[Sequence[int], str], Group],
    ) -> None:
        self._comm = comm
        self._make_group = make_group
        self._world = comm.world
        self.transactions = Transactions(comm)
        self._gone = -1  # number of members that have gone
        # The group of this epoch, and of the one on which the ranks agree.
        self._group: Group | None = None
        self._next_group: Group | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._told = self.ranks  # the members last logged
        self._stop = self._world.members.listen(self._on_loss)
        self._on_loss()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the members that have not gone."""
        gone = self.transactions.gone_members()
        return tuple(rank for rank in self._comm.ranks if rank not in gone)

    def close(self) -> None:
        """Take part in no more epochs."""
        with contextlib.suppress(ValueError):  # it was closed before
            self._stop()
        with self.transactions.locked():
            self._is_closed = True
            self._free_groups()
            self.transactions.fail_all(
                ShutdownError("cut short, because this rank has freed the process set")
            )

    def _on_loss(self) -> None:
        """Leave the current epoch if a member has gone, or enter the first one."""
        with self.transactions.locked():
            gone = self.transactions.gone_members()
            if self._is_closed or len(gone) == self._gone:
                return
            if not gone:
                self._gone = 0
                self._group = self._new_group()
                self.transactions.settle(self._group)
                return
            if self._group is None or self._has_lost(gone[self._gone :]):
                self._leave()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._agree, name="bluecomm-epoch", daemon=True
                )
                self._thread.start()

    def _has_lost(self, ranks: Sequence[int]) -> bool:
        """Return whether one of these ranks has failed; the others have finished."""
        return any(self._world.members.has_failed(rank) for rank in ranks)

    def _leave(self) -> None:
        """Leave the current epoch, whose operations fail on all members."""
        self._gone = len(self.transactions.gone_members())
        self._free_groups()
        self.transactions.interrupt()

    def _new_group(self) -> Group:
        gone = self.transactions.gone_members()[: self._gone]
        left = [rank for rank in self._comm.ranks if rank not in gone]
        return self._make_group(left, f"epoch.{self._gone}.{self._comm.group_id:x}.")

    def _free_groups(self) -> None:
        for group in (self._group, self._next_group):
            if group is not None:
                with contextlib.suppress(BluecommError, ValueError):
                    group.free()
        self._group = self._next_group = None

    # -- the thread that agrees on the next epoch -------------------------------------

    def _agree(self) -> None:
        """Agree with the members that are left on open transactions, and repeat them.

        Runs in a thread of its own until all losses that are known have been handled.
        """
        self._let_finish()
        while True:
            gone = self._gone
            ledger = self.transactions.ledger
            try:
                with self.transactions.locked():
                    if self._is_closed:
                        self._thread = None
                        return
                    gone = self._gone
                    group = self._next_group = self._new_group()
                    report = ledger.report()
                reports = self._exchange(group, "open", report)
                with self.transactions.locked():
                    mine = ledger.standings(reports)
                standings = self._exchange(group, "standings", mine)
            except Exception as error:
                if not self._has_more_losses(gone, error):
                    return
                continue
            with self.transactions.locked():
                if gone != self._gone:
                    continue
                if group is self._next_group:
                    self.transactions.carry_out(ledger.judge(reports, standings))
            if self._enter(gone, group):
                return

    def _enter(self, gone: int, group: Group) -> bool:
        """Begin an epoch, as soon as this rank is not suspended.

        Returns:
            Whether the agreement has ended; False after the loss of another member.
        """
        while True:
            with self.transactions.locked():
                if gone != self._gone:
                    return False
                if group is not self._next_group:  # close() has freed it
                    self._thread = None
                    return True
                if self.transactions.settle(group):
                    self._thread = None
                    self._group, self._next_group = group, None
                    self._tell(group)
                    return True
            time.sleep(LOOK_S)

    def _let_finish(self) -> None:
        """Leave the epoch when the last messages of finished members have arrived.

        Such a member has released its last transaction, so the others can, too.
        """
        until = time.monotonic() + _LAST_BYTES_S
        with self.transactions.locked():
            begun = self.transactions.open
            while self._group is not None and not self._world.is_ending:
                # The world may end meanwhile.
                with contextlib.suppress(BluecommError, ValueError):
                    self.transactions.advance_open()
                left_s = until - time.monotonic()
                if left_s <= 0 or all(transaction.is_over for transaction in begun):
                    break
                self.transactions.changed.wait(min(left_s, _LOOK_AGAIN_S))
            if self._group is not None and not self._world.is_ending:
                self._leave()

    def _exchange(self, group: Group, step: str, mine: Any) -> list[Any]:
        """Return what all members of the new epoch have said in one step."""

        def start(made: Call[list[Any]]) -> RequestHandle[list[Any]]:
            # Calls in a group that has been freed never end.
            with self.transactions.locked():
                if group is not self._next_group:
                    raise ShutdownError("this epoch has ended")
                made.group_id = group.group_id
                return self._world.start(made)

        return exchange(self._world, f"epoch.{step}", mine, start)

    def _has_more_losses(self, gone: int, error: Exception) -> bool:
        """Wait for the loss that ended an agreement; return False if there is none."""
        until = time.monotonic() + REPORT_S
        with self.transactions.locked():
            while gone == self._gone and not self._world.is_ending:
                if self._is_closed:
                    self._thread = None
                    return False
                if not isinstance(error, BluecommError) or time.monotonic() >= until:
                    break
                self.transactions.changed.wait(LOOK_S)
            if gone != self._gone and not self._world.is_ending:
                return True
            if not self._world.is_ending:
                _log.error("rank %d: %s", self._world.rank, error)
            self._free_groups()
            self._thread = None
            self.transactions.fail_all(error)
            return False

    def _tell(self, group: Group) -> None:
        """Log a new epoch of all ranks."""
        if not self._comm.is_world:
            return
        members = self._world.members
        text = (
            f"epoch {self._gone}: collectives go on among "
            f"{format_ranks(group.ranks, noun=True)}"
        )
        if repeated := self.transactions.open:
            text += f"; {count(len(repeated), 'transaction')} repeated"
        members.note("epoch", text, group.ranks)
        newly_gone = [rank for rank in self._told if rank not in group.ranks]
        self._told = group.ranks
        is_first = self._world.rank == group.ranks[0]
        level = (
            logging.WARNING if is_first and self._has_lost(newly_gone) else logging.INFO
        )
        _log.log(level, "%s", text)
