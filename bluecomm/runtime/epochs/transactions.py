"""Runs the transactions of a communicator in the group of its current epoch.

docs/survival.md has the states. Threads of the program, the thread of the callbacks and
those of ``epochs.py`` all use the same lock, and none of them waits for another rank
while it holds the lock.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bluecomm.errors import (
    BluecommError,
    PeerLostError,
    ShutdownError,
    SuspendedError,
)
from bluecomm.runtime.call import Call, Result
from bluecomm.runtime.completions import Callback, call
from bluecomm.runtime.epochs.commit_barrier import barrier_name, barrier_of
from bluecomm.runtime.epochs.coverage import (
    OVERWRITING,
    renumbered,
    why_impossible,
)
from bluecomm.runtime.epochs.group import Group
from bluecomm.runtime.epochs.ledger import Decision, Key, Ledger
from bluecomm.runtime.epochs.locked import Locked
from bluecomm.runtime.epochs.loss_errors import advise_of_nccl, lost_error
from bluecomm.runtime.epochs.transaction import (
    CallOfTransaction,
    Transaction,
    TransactionHandle,
    TransactionState,
)
from bluecomm.runtime.failure import (
    CLOSED,
    FREED,
    INTERNAL,
    OK,
    PEER_LOST,
    Reason,
)
from bluecomm.runtime.handle import FinishedHandle, RequestHandle

if TYPE_CHECKING:
    from bluecomm._native import Completion

# How long a failure that looks like a loss waits for the decision about the loss.
REPORT_S = 10.0
# Time after which a thread that waits for others checks if the world has ended.
LOOK_S = 0.5


class Transactions:
    """The transactions of one communicator on this rank.

    Methods whose names begin with an underscore, and those that say so, are called with
    the lock held, except ``_advance_all`` and ``_when_over``, which take it.

    Args:
        comm: The communicator.

    Attributes:
        changed: The lock, which is also notified when something has changed.
        ledger: The transactions that this rank has started, released and seen fail.
        group: The group of the current epoch; ``None`` while the ranks agree on one.
        broken: The error that ends all transactions, if there can be no next epoch.
    """

    def __init__(self, comm: Group) -> None:
        self._comm = comm
        self._world = comm.world
        self.changed = threading.Condition(threading.Lock())
        self.ledger = Ledger()
        self.group: Group | None = None
        self.broken: Exception | None = None
        self._open: dict[Key, Transaction] = {}  # in the order of their start
        # Transactions that have not entered their barriers, by name, in their order.
        self._lanes: dict[str, collections.deque[Transaction]] = {}
        # Calls of each kind and name, also in transactions of several calls.
        self._calls: collections.Counter[str] = collections.Counter()
        self._entered = threading.local()
        # Functions that a thread calls after it has released the lock.
        self._later: collections.deque[Callable[[], None]] = collections.deque()

    @property
    def open(self) -> list[Transaction]:
        """The transactions that have not ended, in the order of their start."""
        return list(self._open.values())

    def gone_members(self) -> list[int]:
        """Return the ranks of the members that have gone, in the order decided."""
        return [rank for rank in self._world.members.gone if rank in self._comm.ranks]

    def locked(self) -> Locked:
        """Hold the lock in a ``with`` block; then call what must not hold it."""
        return Locked(self.changed, self._later)

    # -- the calls of the program -----------------------------------------------------

    def begin(self, name: str, calls: int, *, in_background: bool) -> Transaction:
        """Return a new transaction; see ``Transaction`` for the arguments."""
        with self.locked():
            return self._begin(name, calls, in_background=in_background)

    def start(self, made: Call[Result]) -> TransactionHandle[Result]:
        """Start a collective, as part of this thread's transaction or as its own."""
        assert made.name is not None
        self._world.check_usable()
        self._world.check_running(made.kind, made.name)
        transaction: Transaction | None = getattr(self._entered, "transaction", None)
        with self.locked():
            # A call beyond the expected ones follows from one that has ended here.
            if transaction is None or transaction.awaited_calls <= 0:
                transaction = self._begin(
                    f"{made.kind}.{made.name}", 1, in_background=not made.blocking
                )
            self._calls[f"{made.kind}.{made.name}"] += 1
            # It may be repeated; its handle raises late failures after the release.
            made.blocking = made.raises_late = False
            operation = CallOfTransaction(made)
            transaction.operations.append(operation)
            transaction.awaited_calls -= 1
            if self.group is not None and not transaction.is_over:
                try:
                    self._submit(transaction, operation)
                except Exception as error:
                    self._fail(transaction, error)
                    raise
        return TransactionHandle(transaction, operation, self._when_over)

    def is_in_flight(self, kind: str, name: str) -> bool:
        """Return whether a call of this kind and name has not been released here."""
        with self.locked():
            return any(
                (operation.call.kind, operation.call.name) == (kind, name)
                for transaction in self._open.values()
                for operation in transaction.operations
            )

    def calls_like(self, made: Call[Any]) -> int:
        """Return how many calls of this kind and name have been started here."""
        with self.locked():
            return self._calls[f"{made.kind}.{made.name}"]

    def refuse(self, made: Call[None], reason: Reason) -> None:
        """Count a call that this rank does not make, and tell the other members."""
        with self.locked():
            while self.group is None and self.broken is None:
                self._world.check_usable()
                self.changed.wait(LOOK_S)
            name = f"{made.kind}.{made.name}"
            self._calls[name] += 1
            transaction = self._begin(name, 0, in_background=False)
            if self.group is not None and not transaction.is_over:
                made.group_id = self.group.group_id
                # Only the text is passed on: with the code of a loss the other members
                # would take the failure for a loss in this transaction.
                self._world.refuse(made, Reason(reason.text))
                self._fail(transaction, BluecommError(reason.text))

    def enter(self, transaction: Transaction) -> None:
        """Make the next calls of this thread part of a transaction."""
        self._entered.transaction = transaction

    def leave(self) -> None:
        """Make each of the next calls of this thread a transaction of its own."""
        self._entered.transaction = None

    def advance(self, transaction: Transaction) -> None:
        """Move a transaction on as far as possible without waiting."""
        with self.locked():
            self._advance(transaction)

    def take_late_failure(self, made: Call[Any]) -> Exception | None:
        """Return the failures of earlier calls that a released call raises."""
        return self._world.take_late_failure(made)

    def wait_for(self, transaction: Transaction, timeout_s: float | None) -> bool:
        """Wait until a transaction has ended; return whether it has."""
        if timeout_s is None and self._commit_in_engine(transaction):
            return True
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self.locked():
                before = self._awaited(transaction)
                self._advance(transaction)
                if transaction.is_over:
                    return True
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                request = self._awaited(transaction)
                if request is None:
                    # A request that has just ended notifies nobody.
                    if before is None:
                        self.changed.wait(min(LOOK_S, left_s or LOOK_S))
                    continue
            request.await_end(left_s)

    # -- epochs; all of these need the lock -------------------------------------------

    def advance_open(self) -> None:
        """Move all open transactions on as far as possible without waiting."""
        for transaction in self.open:
            self._advance(transaction)

    def interrupt(self) -> None:
        """Start and release nothing until the next epoch."""
        self.group = None
        self.broken = None
        self.changed.notify_all()

    def fail_all(self, error: Exception) -> None:
        """Fail all open transactions, and those that follow."""
        self.group = None
        self.broken = error
        for transaction in self.open:
            self._fail(transaction, error)

    def carry_out(self, decisions: dict[Key, tuple[Decision, str]]) -> None:
        """Release or fail what the ranks have decided, and prepare to repeat the rest.

        ``settle`` follows, unless another member is lost before.
        """
        self._lanes.clear()
        for transaction in self.open:
            key = transaction.key
            decision, why = decisions.get(key, (Decision.REPEAT, ""))
            if decision is Decision.RELEASE:
                self._release(transaction)
            elif decision is Decision.FAIL:
                self._fail(transaction, self._lost(key, why))
            else:
                self._lanes.setdefault(key[0], collections.deque()).append(transaction)
                transaction.reset()

    def settle(self, group: Group) -> bool:
        """Begin an epoch: start in its group what has not been started there.

        Returns:
            Whether all has been started. If not, the world is suspended: call this
            again. Until it has succeeded, new calls wait, so that calls of a name
            start in the order in which the program has made them.
        """
        self.group = group
        for transaction in self.open:
            for operation in transaction.operations:
                if operation.request is not None or transaction.is_over:
                    continue
                try:
                    self._submit(transaction, operation)
                except SuspendedError:
                    self.group = None
                    return False
                except Exception as error:  # the program learns of it when it waits
                    self._fail(transaction, error)
        # Requests that were started here earlier may have ended since.
        self._later.append(self._advance_all)
        self.changed.notify_all()
        return True

    # -- starting ---------------------------------------------------------------------

    def _begin(self, name: str, calls: int, *, in_background: bool) -> Transaction:
        key = self.ledger.begin(name)
        transaction = Transaction(self, key, calls, in_background=in_background)
        known = self.ledger.failure_of(key)
        if known is not None:
            self.ledger.fail(key, known)
            transaction.state, transaction.error = (
                TransactionState.FAILED,
                self._lost(key, known),
            )
            return transaction
        self._open[key] = transaction
        self._lanes.setdefault(name, collections.deque()).append(transaction)
        if self.broken is not None:
            self._fail(transaction, self.broken)
        return transaction

    def _submit(self, transaction: Transaction, operation: CallOfTransaction) -> None:
        """Start a call in the group of this epoch."""
        group, made = self.group, operation.call
        assert group is not None
        is_first = group.ranks == self._comm.ranks
        gone = () if is_first else self._world.members.gone
        if why := why_impossible(made, operation.parameters, self._comm.ranks, gone):
            self._fail(transaction, self._lost(transaction.key, why))
            return
        in_place = made.source == made.destination and made.source[1] > 0
        if in_place and made.kind in OVERWRITING:
            self.ledger.forbid(transaction.key, "it has overwritten its input")
        if not is_first:
            made.parameters = renumbered(
                made, operation.parameters, self._comm.ranks, group.ranks
            )
        made.enter(group)
        transaction.contributors = made.contributors = len(group.ranks)
        operation.request = self._world.start(made)
        self._watch(transaction, operation.request)

    def _watch(self, transaction: Transaction, request: RequestHandle[Any]) -> None:
        """Have the thread of the callbacks move a transaction on after a request."""
        if not transaction.in_background:
            return

        def watch() -> None:
            # The program may have waited for it already, or the world have ended.
            with contextlib.suppress(ValueError, BluecommError):
                request.on_finish(lambda: self.advance(transaction))

        self._later.append(watch)

    # -- moving on --------------------------------------------------------------------

    def _awaited(self, transaction: Transaction) -> RequestHandle[Any] | None:
        """Return the request to wait for; None if other threads must act first."""
        if self.group is None or transaction.doubt is not None:
            return None
        if transaction.state is TransactionState.COMMITTING:
            return transaction.commit
        for operation in transaction.operations:
            if operation.request is not None and not operation.request.done():
                return operation.request
        return None

    def _advance(self, transaction: Transaction) -> None:
        if transaction.is_over:
            return
        if self._world.is_ending:
            self._end(transaction)
        elif self.group is None or transaction.entering is not None:
            pass
        elif transaction.doubt is not None:
            until, error = transaction.doubt
            if time.monotonic() >= until:
                if self._world.members.is_held:  # nobody can decide yet
                    self._doubt(transaction, error)
                else:
                    self._fail(transaction, error)
        elif transaction.state is TransactionState.COMMITTING:
            if self._has_succeeded(transaction, transaction.commit):
                self._release(transaction)
        elif transaction.awaited_calls <= 0 and all(
            self._has_succeeded(transaction, operation.request)
            for operation in transaction.operations
        ):
            transaction.is_ready = True
            self._commit(transaction.key[0])

    def _advance_all(self) -> None:
        with self.locked():
            self.advance_open()

    def _has_succeeded(
        self, transaction: Transaction, request: RequestHandle[Any] | None
    ) -> bool:
        assert request is not None
        if isinstance(request, FinishedHandle):
            return True
        if not request.done():
            return False
        completion = request.await_end(0.0)
        if completion is None:  # the world is suspended
            return False
        if completion.code == OK:
            return True
        self._on_failure(transaction, request, completion)
        return False

    def _on_failure(
        self,
        transaction: Transaction,
        request: RequestHandle[Any],
        completion: Completion,
    ) -> None:
        error = request.failure_of(completion)
        # NCCL may report a loss as any error, and does not say of which rank.
        is_of_nccl = (
            completion.code in (INTERNAL, PEER_LOST)
            and completion.rank < 0
            and any(one.call.ticket is not None for one in transaction.operations)
        )
        if is_of_nccl and isinstance(error, BluecommError) and self.group is not None:
            advise_of_nccl(error, self.group.ranks, self._world.rank, REPORT_S)
        if completion.code in (CLOSED, FREED, PEER_LOST) or is_of_nccl:
            self._doubt(transaction, error)
        else:
            self._fail(transaction, error)

    def _doubt(self, transaction: Transaction, error: Exception) -> None:
        """Let a failure wait for the decision about a loss, which others may know."""
        transaction.doubt = time.monotonic() + REPORT_S, error
        self.changed.notify_all()
        self._advance_in(REPORT_S, transaction)

    def _commit(self, name: str) -> None:
        """Enter the barriers of a name's transactions, in order, as far as possible."""
        group, lane = self.group, self._lanes.get(name)
        while group is not None and lane:
            transaction = lane[0]
            if transaction.entering is not None:
                return
            if transaction.state is TransactionState.FAILED:
                lane.popleft()
                with contextlib.suppress(BluecommError, ValueError):
                    barrier, why = barrier_name(name), str(transaction.error)
                    group.refuse("barrier", barrier, Reason(why), None)
            elif transaction.is_ready:
                try:
                    commit = self._world.start(barrier_of(name, group))
                except SuspendedError:
                    self._advance_in(LOOK_S, transaction)
                    return
                self._note_commit(transaction, commit)
            else:
                return
        if lane is not None and not lane:
            del self._lanes[name]

    def _note_commit(
        self, transaction: Transaction, commit: RequestHandle[None]
    ) -> None:
        """Note that the first transaction of a lane has entered its barrier."""
        lane = self._lanes[transaction.key[0]]
        assert lane[0] is transaction
        lane.popleft()
        transaction.commit = commit
        transaction.state = TransactionState.COMMITTING
        self._watch(transaction, commit)
        self.changed.notify_all()

    def _commit_in_engine(self, transaction: Transaction) -> bool:
        """Have the engine wait for all operations, and then enter the barrier at once.

        Other ranks wait for this rank's barrier, so it does not return to Python in
        between. Called without the lock.

        Returns:
            Whether the transaction has ended.
        """
        name, turn = transaction.key[0], object()
        # The handle of the barrier, which must not be entered a second time even if a
        # signal handler raises.
        commits: list[RequestHandle[None]] = []
        try:
            with self.locked():
                group, lane = self.group, self._lanes.get(name)
                requests = [
                    one.request for one in transaction.operations if one.request
                ]
                if (
                    group is None
                    or not lane
                    or lane[0] is not transaction
                    or transaction.state is not TransactionState.RUNNING
                    or transaction.entering is not None
                    or transaction.doubt is not None
                    or not requests
                    or len(requests) < len(transaction.operations)
                    or self._world.is_ending
                ):
                    return transaction.is_over
                transaction.entering = turn
            self._world.run_after(requests, barrier_of(name, group), commits)
        finally:
            with self.locked():
                # Otherwise this epoch has ended, and the transaction is repeated.
                if transaction.entering is turn:
                    transaction.entering = None
                    if commits and not transaction.is_over:
                        self._note_commit(transaction, commits[0])
                    self._advance(transaction)
                    self._commit(name)
        return transaction.is_over

    def _advance_in(self, delay_s: float, transaction: Transaction) -> None:
        """Have a transaction moved on later, if no thread need wait for it."""
        if transaction.in_background:
            timer = threading.Timer(delay_s, self.advance, [transaction])
            timer.daemon = True
            timer.start()

    # -- ending -----------------------------------------------------------------------

    def _release(self, transaction: Transaction) -> None:
        transaction.state = TransactionState.RELEASED
        self.ledger.release(transaction.key)
        self._leave_open(transaction)

    def _fail(self, transaction: Transaction, error: Exception) -> None:
        transaction.state, transaction.error = TransactionState.FAILED, error
        self.ledger.fail(transaction.key, str(error))
        self._leave_open(transaction)
        self._commit(transaction.key[0])

    def _end(self, transaction: Transaction) -> None:
        """Fail a transaction because the world has ended."""
        name = transaction.key[0]
        error = ShutdownError(f"{name}: cut short by bluecomm.shutdown()")
        self._fail(transaction, error)

    def _leave_open(self, transaction: Transaction) -> None:
        self._open.pop(transaction.key, None)
        for callback in transaction.callbacks:
            self._later.append(lambda one=callback: self._call(one))  # type: ignore[misc]
        transaction.callbacks.clear()
        self.changed.notify_all()

    def _call(self, callback: Callback) -> None:
        """Call a function whose calls are not part of this thread's transaction."""
        entered = getattr(self._entered, "transaction", None)
        self._entered.transaction = None
        try:
            call(callback)
        finally:
            self._entered.transaction = entered

    def _when_over(self, transaction: Transaction, callback: Callback) -> bool:
        """Call a function when a transaction ends; return False if it has ended."""
        with self.locked():
            self._advance(transaction)
            if not transaction.is_over:
                transaction.callbacks.append(callback)
            return not transaction.is_over

    def _lost(self, key: Key, why: str) -> PeerLostError:
        return lost_error(key, why, self.gone_members(), self._world.rank)
