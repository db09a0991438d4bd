"""Handles: the results of nonblocking operations."""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from bfrun.wording import count
from bluecomm.errors import CommunicationTimeout
from bluecomm.runtime.completions import Callback, call
from bluecomm.runtime.failure import OK, failure, late

if TYPE_CHECKING:
    from bluecomm._native import Completion

Result = TypeVar("Result")


class RequestOwner(Protocol):
    """The methods of a world that its handles call."""

    rank: int

    def is_done(self, number: int) -> bool:
        """Return whether a request has ended."""

    def wait(self, number: int, timeout_s: float | None) -> Completion | None:
        """Wait for a request; return ``None`` if ``timeout_s`` passed."""

    def on_finish(self, number: int, callback: Callback) -> None:
        """Call ``callback`` once a request has ended."""

    def limit_s(self, number: int) -> float:
        """Return the deadline that a request was started with, in seconds."""

    def release(self, number: int) -> None:
        """Drop a request that has been waited for."""

    def forget(self, number: int) -> None:
        """Drop a request that nobody will wait for, once it has ended."""

    def abandon(self, number: int, why: str) -> None:
        """End a request with a failure, unless it has ended, and drop it."""


class Handle(abc.ABC, Generic[Result]):
    """An operation, or a call about a window, that was started and may still run.

    Its tensors are kept alive until it has ended, even if the handle is dropped without
    ``wait``. A handle is waited for once.
    """

    __slots__ = ()

    @abc.abstractmethod
    def done(self) -> bool:
        """Return whether ``wait`` would return (or raise) at once.

        Raises:
            ValueError: The handle has been waited for already.
        """

    @abc.abstractmethod
    def wait(self, timeout_s: float | None = None) -> Result:
        """Return the result as soon as it is available.

        Args:
            timeout_s: Seconds to wait at most. The operation continues after that, and
                the handle can be waited for again. Default: the operation's deadline.

        Returns:
            The result of the blocking form of the operation.

        Raises:
            ValueError: The handle has been waited for already.
            MismatchError: The ranks called the operation with different arguments.
            PeerLostError: A rank that takes part is lost.
            CommunicationTimeout: The deadline or ``timeout_s`` passed.
            ShutdownError: ``shutdown`` cut the operation short.
        """

    @abc.abstractmethod
    def on_finish(self, callback: Callback) -> None:
        """Call ``callback()`` once the operation has finished, or failed.

        It is called exactly once: in the calling thread if the operation has finished
        already, else in a thread that bluecomm has for this. ``wait`` then returns (or
        raises) at once; it does the rest of the work, such as copying a result, in the
        thread that calls it. A callback must not wait for other operations, because the
        callbacks of one process are called one after the other. An exception that it
        raises is logged.

        When the program calls ``shutdown``, or a rank is lost, the callbacks of the
        operations that fail are called, too.

        Args:
            callback: Function without arguments. It lives until it has been called.

        Raises:
            ValueError: The handle has been waited for already.
        """


class RequestHandle(Handle[Result]):
    """The handle of one request of the engine.

    Args:
        world: World whose engine runs the request.
        number: The engine's id of the request.
        kind: The name of the function that started it.
        name: Name of the operation or the window.
        finish: Makes the result from ``number`` once the request has succeeded. Called
            once, by ``wait``, also if the request was carried out but raises the
            failure of an earlier one.
    """

    __slots__ = ("_finish", "_kind", "_name", "_number", "_world")

    def __init__(
        self,
        world: RequestOwner,
        number: int,
        kind: str,
        name: str,
        finish: Callable[[int], Result],
    ) -> None:
        self._world = world
        self._number = number
        self._kind = kind
        self._name = name
        self._finish: Callable[[int], Result] | None = finish

    @property
    def number(self) -> int:
        """The engine's id of the request."""
        return self._number

    def done(self) -> bool:
        self._fresh()
        return self._world.is_done(self._number)

    def wait(self, timeout_s: float | None = None) -> Result:
        finish = self._fresh()
        world, number = self._world, self._number
        completion = self._await_result(timeout_s)
        if completion is None:
            raise CommunicationTimeout(
                f"{self._label()} on rank {world.rank}: not finished within "
                f"{timeout_s:g} s; the operation goes on; wait for it again",
                operation=self._kind,
                name=self._name,
                rank=world.rank,
                timeout_s=timeout_s,
            )
        self._finish = None
        try:
            if completion.code != OK:
                raise self._failure_after(completion, finish)
            return finish(number)
        finally:
            world.release(number)

    def _failure_after(
        self, completion: Completion, finish: Callable[[int], Result]
    ) -> Exception:
        """Return the exception for a failed completion, after making any result."""
        error = self.failure_of(completion)
        if not completion.was_carried_out:
            return error
        try:
            finish(self._number)  # the program may hold the memory of the result
        except Exception as cause:
            error.__cause__ = cause
        return late(error)

    def _await_result(self, timeout_s: float | None) -> Completion | None:
        return self._world.wait(self._number, timeout_s)

    def await_end(self, timeout_s: float | None = None) -> Completion | None:
        """Wait until the request has ended, and leave the result to ``wait``.

        Returns:
            The engine's outcome; ``None`` if ``timeout_s`` passed.
        """
        return self._world.wait(self._number, timeout_s)

    def failure_of(self, completion: Completion) -> Exception:
        """Return the exception for a failed completion."""
        return failure(
            completion,
            kind=self._kind,
            name=self._name,
            rank=self._world.rank,
            timeout_s=self._world.limit_s(self._number),
        )

    def on_finish(self, callback: Callback) -> None:
        self._fresh()
        self._world.on_finish(self._number, callback)

    def abandon(self, why: str) -> None:
        """End the request with a failure, unless it has ended, and drop the handle.

        A receive that is dropped without this takes the message of a later one.
        """
        if self._finish is not None:
            self._finish = None
            self._world.abandon(self._number, f"{self._label()}: {why}")

    def _fresh(self) -> Callable[[int], Result]:
        """Return the function that makes the result; ``wait`` uses it once."""
        if self._finish is None:
            raise ValueError(
                f"cannot find handle: {self._label()} has been waited for already; "
                "a handle can be waited for once, so keep the result"
            )
        return self._finish

    def _label(self) -> str:
        return f"{self._kind} {self._name!r}"

    def __del__(self) -> None:
        if self._finish is not None:
            self._world.forget(self._number)

    def __repr__(self) -> str:
        state = "waited for" if self._finish is None else "outstanding"
        return f"<Handle of {self._label()}, {state}>"


class FinishedHandle(RequestHandle[Result]):
    """The handle of a request that has succeeded and has been released already."""

    __slots__ = ()

    def done(self) -> bool:
        self._fresh()
        return True

    def wait(self, timeout_s: float | None = None) -> Result:
        finish, self._finish = self._finish or self._fresh(), None
        return finish(self._number)

    def on_finish(self, callback: Callback) -> None:
        self._fresh()
        call(callback)

    def abandon(self, why: str) -> None:
        self._finish = None

    def __del__(self) -> None:
        pass  # the engine has nothing left to forget


class DoneHandle(Handle[Result]):
    """The handle of an operation whose result is known."""

    __slots__ = ("_result",)

    def __init__(self, result: Result) -> None:
        self._result = result

    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> Result:
        return self._result

    def on_finish(self, callback: Callback) -> None:
        call(callback)


class MappedHandle(Handle[Result]):
    """A handle whose result is made from the result of another handle."""

    __slots__ = ("_inner", "_map")

    def __init__(self, inner: Handle[Any], map_result: Callable[[Any], Result]) -> None:
        self._inner = inner
        self._map = map_result

    def done(self) -> bool:
        return self._inner.done()

    def wait(self, timeout_s: float | None = None) -> Result:
        return self._map(self._inner.wait(timeout_s))

    def on_finish(self, callback: Callback) -> None:
        self._inner.on_finish(callback)

    def __repr__(self) -> str:
        return repr(self._inner)


class GroupHandle(Handle[list[Result]]):
    """A handle of several operations, which returns their results in order."""

    __slots__ = ("_members", "_outcomes")

    def __init__(self, members: Sequence[Handle[Result]]) -> None:
        self._members = list(members)
        # Results and errors of the first members, which have been waited for.
        self._outcomes: list[Result | Exception] = []

    def done(self) -> bool:
        return all(member.done() for member in self._left())

    def wait(self, timeout_s: float | None = None) -> list[Result]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for member in self._left():
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self._outcomes.append(member.wait(left))
            except Exception as error:
                if can_be_waited_for(member):
                    raise  # the limit has passed, or a signal handler has raised
                self._outcomes.append(error)
        outcomes, self._outcomes = self._outcomes, []
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes  # type: ignore[return-value]

    def on_finish(self, callback: Callback) -> None:
        members = self._left()
        if not members:
            call(callback)
            return
        lock = threading.Lock()
        left = len(members)

        def count_down() -> None:
            nonlocal left
            with lock:
                left -= 1
                is_last = left == 0
            if is_last:
                call(callback)

        for member in members:
            member.on_finish(count_down)

    def _left(self) -> Sequence[Handle[Result]]:
        """Return the members that have not been waited for."""
        return self._members[len(self._outcomes) :]

    def __repr__(self) -> str:
        return f"<Handle of {count(len(self._members), 'operation')}>"


def abandon_all(handles: Iterable[Handle[Any]], why: str) -> None:
    """End the requests of handles that nobody will wait for; see ``abandon``."""
    for handle in handles:
        if isinstance(handle, RequestHandle):
            handle.abandon(why)


def can_be_waited_for(handle: Handle[Any]) -> bool:
    """Return whether a wait has only been cut short, and may be repeated."""
    try:
        handle.done()
    except ValueError:  # the operation has failed
        return False
    return True


def ends_within(handle: Handle[Any], timeout_s: float | None) -> bool:
    """Wait for a handle; return whether its operation has ended within a limit.

    Raises:
        BluecommError: The operation has failed.
    """
    try:
        handle.wait(timeout_s)
    except CommunicationTimeout:
        if timeout_s is None or not can_be_waited_for(handle):
            raise
        return False
    return True


def wait_all(
    handles: Sequence[Handle[Result]], timeout_s: float | None = None
) -> list[Result]:
    """Wait for all handles and return their results in order.

    All are waited for even if one of them fails; then the first error is raised.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    results, failures = [], []
    for handle in handles:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            results.append(handle.wait(left))
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return results
