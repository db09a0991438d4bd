"""Transactions: collectives whose results all ranks release together."""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from bluecomm.errors import CommunicationTimeout
from bluecomm.runtime.call import Call
from bluecomm.runtime.completions import Callback, call
from bluecomm.runtime.handle import Handle, RequestHandle, Result

if TYPE_CHECKING:
    from bluecomm._native import Parameters
    from bluecomm.runtime.epochs.ledger import Key


class TransactionState(enum.Enum):
    """The state of a transaction on one rank; docs/survival.md describes them."""

    RUNNING = "running"
    COMMITTING = "committing"
    RELEASED = "released"
    FAILED = "failed"


class TransactionOwner(Protocol):
    """The methods of the epochs that a transaction calls."""

    def wait_for(self, transaction: Transaction, timeout_s: float | None) -> bool:
        """Wait until a transaction has ended; return whether it has."""

    def advance(self, transaction: Transaction) -> None:
        """Move a transaction on as far as possible without waiting."""

    def take_late_failure(self, made: Call[Any]) -> Exception | None:
        """Return the failures of earlier calls that a released call raises."""

    def enter(self, transaction: Transaction) -> None:
        """Make the next calls of this thread part of a transaction."""

    def leave(self) -> None:
        """Make each of the next calls of this thread a transaction of its own."""


class CallOfTransaction:
    """One call of a transaction, and its request in the current epoch."""

    def __init__(self, made: Call[Any]) -> None:
        self.call = made
        # With the root's number in the first epoch; numbers change with the epoch.
        self.parameters: Parameters | None = made.parameters
        self.request: RequestHandle[Any] | None = None


class Transaction:
    """Some collectives whose results are released together, on one rank.

    The calls that a thread makes in ``with transaction:`` belong to it. Only the epochs
    change its state, under their lock.

    Args:
        owner: The epochs of the communicator.
        key: Its name and number.
        calls: Number of its calls. When all have been made, it may be committed.
        in_background: Whether the thread of the callbacks moves it on, too. Otherwise
            the program must wait for it without waiting for anything else first.
    """

    def __init__(
        self, owner: TransactionOwner, key: Key, calls: int, *, in_background: bool
    ) -> None:
        self._owner = owner
        self.key = key
        self.operations: list[CallOfTransaction] = []
        self.awaited_calls = calls
        self.in_background = in_background
        self.state = TransactionState.RUNNING
        self.error: Exception | None = None
        # If a loss seems to have stopped it: until when it waits for a decision about
        # the loss, and the error that it raises if there is none.
        self.doubt: tuple[float, Exception] | None = None
        # Whether all operations have succeeded here in the current epoch.
        self.is_ready = False
        # Set while a thread waits in the engine, which then enters the barrier.
        self.entering: object | None = None
        self.commit: RequestHandle[Any] | None = None
        # Number of members whose inputs the results contain.
        self.contributors = 0
        self.callbacks: list[Callback] = []

    @property
    def is_over(self) -> bool:
        """Whether it is released or has failed."""
        return self.state in (TransactionState.RELEASED, TransactionState.FAILED)

    def reset(self) -> None:
        """Forget what has happened in an epoch, because it is repeated in the next."""
        self.state = TransactionState.RUNNING
        self.commit = self.doubt = self.entering = None
        self.is_ready = False
        for operation in self.operations:
            operation.request = None

    def poll(self) -> bool:
        """Return whether it has ended, after moving it on as far as possible."""
        self._owner.advance(self)
        return self.is_over

    def take_late_failure(self, made: Call[Any]) -> Exception | None:
        """Return the failures of earlier calls that one of its calls raises."""
        return self._owner.take_late_failure(made)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; return whether that was within ``timeout_s``.

        From then on it expects no further calls.
        """
        self.awaited_calls = 0
        return self._owner.wait_for(self, timeout_s)

    def __enter__(self) -> Transaction:
        self._owner.enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._owner.leave()


class TransactionHandle(Handle[Result]):
    """The handle of one call of a transaction.

    Args:
        transaction: The transaction.
        operation: The call.
        when_over: Calls a function when the transaction ends.
    """

    __slots__ = ("_is_taken", "_operation", "_transaction", "_when_over")

    def __init__(
        self,
        transaction: Transaction,
        operation: CallOfTransaction,
        when_over: Callable[[Transaction, Callback], bool],
    ) -> None:
        self._transaction = transaction
        self._operation = operation
        self._when_over = when_over
        self._is_taken = False

    @property
    def transaction(self) -> Transaction:
        """The transaction, which knows who has contributed."""
        return self._transaction

    def done(self) -> bool:
        self._fresh()
        return self._transaction.poll()

    def wait(self, timeout_s: float | None = None) -> Result:
        self._fresh()
        transaction = self._transaction
        if not transaction.wait(timeout_s):
            raise CommunicationTimeout(
                f"{self._label()}: not finished within {timeout_s:g} s; the operation "
                "goes on; wait for it again",
                operation=self._operation.call.kind,
                name=self._operation.call.name,
                timeout_s=timeout_s,
            )
        self._is_taken = True
        if transaction.error is not None:
            raise transaction.error
        request, self._operation.request = self._operation.request, None
        assert request is not None
        result: Result = request.wait()
        late = transaction.take_late_failure(self._operation.call)
        if late is not None:
            raise late
        return result

    def on_finish(self, callback: Callback) -> None:
        self._fresh()
        if not self._when_over(self._transaction, callback):
            call(callback)

    def _fresh(self) -> None:
        if self._is_taken:
            raise ValueError(
                f"cannot find handle: {self._label()} has been waited for already; "
                "a handle can be waited for once, so keep the result"
            )

    def _label(self) -> str:
        return f"{self._operation.call.kind} {self._operation.call.name!r}"

    def __repr__(self) -> str:
        state = "waited for" if self._is_taken else "outstanding"
        return f"<Handle of {self._label()}, {state}>"
