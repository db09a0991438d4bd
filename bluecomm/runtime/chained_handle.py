"""A handle of operations that follow one another, each started by the one before."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from bluecomm.runtime.completions import Callback
from bluecomm.runtime.handle import DoneHandle, Handle, Result, can_be_waited_for

# Chains that may have steps left, by which other ranks may be waiting for this one.
_chains: weakref.WeakSet[ChainedHandle[Any]] = weakref.WeakSet()
_chains_lock = threading.RLock()  # a signal handler may start a chain, too
# How often to look whether a chain has ended.
_POLL_S = 0.001

# Takes the result of the operation before, and starts the next one.
Step = Callable[[Any], Handle[Any]]


class ChainedHandle(Handle[Result]):
    """Starts the next operation of a chain as soon as the one before has ended.

    The thread of callbacks (see ``Handle.on_finish``) runs a step, or the thread that
    waits for this handle, whichever sees first that the operation before the step has
    ended. No two steps run at the same time. The chain goes on if the handle is
    dropped.

    Args:
        first: The first operation.
        steps: For each following operation, a function that takes the result of the
            one before and returns its handle. The last one gives the result of the
            chain. A step must not wait for other operations.
        on_failure: Called with the error, before ``wait`` raises it, if an operation or
            a step fails while steps are left. Their operations will not be started.
        in_background: Whether to go on before somebody waits for this handle.
    """

    def __init__(
        self,
        first: Handle[Any],
        *steps: Step,
        on_failure: Callable[[Exception], object] = lambda _: None,
        in_background: bool = True,
    ) -> None:
        self._current = first
        self._steps = deque(steps)
        self._on_failure = on_failure
        self._in_background = in_background
        self._failure: Exception | None = None
        self._callbacks: deque[Callback] = deque()
        self._is_waited_for = False
        # Held by the thread that waits for the current operation or runs a step.
        self._lock = threading.Lock()
        # Held while callbacks are passed on, so that nobody finishes waiting meanwhile.
        self._calling = threading.RLock()
        # Whether _go_on() has been called and could not run, because the lock was
        # taken. The holder of the lock calls it after the release.
        self._is_due = False
        # The operation whose end calls ``_go_on``.
        self._watched: Handle[Any] | None = None
        with _chains_lock:
            _chains.add(self)
        self._go_on()

    def done(self) -> bool:
        self._check_fresh()
        self._go_on()
        return self._has_ended and bool(self._current.done())

    def wait(self, timeout_s: float | None = None) -> Result:
        self._check_fresh()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        def left_s() -> float | None:
            return None if deadline is None else max(0.0, deadline - time.monotonic())

        try:
            with self._lock:
                while not self._has_ended:
                    self._take_step(left_s())
            self._call_back()
            if self._failure is None:
                result: Result = self._current.wait(left_s())
        except BaseException:
            if can_be_waited_for(self._current):
                # The thread of callbacks has left this chain to us.
                self._go_on()
            else:
                self._is_waited_for = True
            raise
        self._is_waited_for = True
        if self._failure is not None:
            raise self._failure
        return result

    def on_finish(self, callback: Callback) -> None:
        self._check_fresh()
        self._callbacks.append(callback)
        self._in_background = True
        self._go_on()

    def ends_within(self, timeout_s: float | None) -> bool:
        """Return whether the chain ends within a limit; the program may wait for it.

        A chain that goes on only while somebody waits for it counts as ended.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._is_under_way():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def _is_under_way(self) -> bool:
        if self._is_waited_for or not self._in_background:
            return False
        self._go_on()
        try:
            return not (self._has_ended and self._current.done())
        except ValueError:  # another thread has waited for the last operation
            return False

    @property
    def _has_ended(self) -> bool:
        """Whether no step is left; the current operation may still run."""
        return not self._steps or self._failure is not None

    def _go_on(self) -> None:
        """Run the steps that are due, unless another thread or an outer call does."""
        self._is_due = True
        while self._is_due and self._lock.acquire(blocking=False):
            try:
                self._is_due = False
                while not self._has_ended and self._current.done():
                    self._take_step(None)
                self._watch()
            finally:
                self._lock.release()
        self._call_back()

    def _watch(self) -> None:
        """Let the end of the current operation call ``_go_on``, if steps are left."""
        watches = self._in_background and not self._has_ended
        if watches and self._watched is not self._current:
            self._watched = self._current
            self._current.on_finish(self._go_on)

    def _take_step(self, timeout_s: float | None) -> None:
        """Wait for the current operation and start the next one, under the lock."""
        try:
            result = self._current.wait(timeout_s)
        except Exception as error:
            if can_be_waited_for(self._current):
                raise  # the limit has passed, or a signal handler has raised
            self._fail(error)
            return
        try:
            self._current = self._steps[0](result)
        except Exception as error:
            self._fail(error)
            return
        self._steps.popleft()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._current = DoneHandle(None)
        self._on_failure(error)

    def _call_back(self) -> None:
        """Pass the callbacks on to the last operation. The lock must be free."""
        with self._calling:
            while self._has_ended and self._callbacks:
                self._current.on_finish(self._callbacks.popleft())

    def _check_fresh(self) -> None:
        if self._is_waited_for:
            raise ValueError(
                f"cannot find handle: {self!r} has been waited for already; a handle "
                "can be waited for once, so keep the result"
            )

    def __repr__(self) -> str:
        return f"<Chain at {self._current!r}>"


def chains_under_way() -> list[ChainedHandle[Any]]:
    """Return the chains of this process that may not have ended."""
    with _chains_lock:
        return list(_chains)
