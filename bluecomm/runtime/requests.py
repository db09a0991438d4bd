"""The requests that a process has started in a world, and the memory they use."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bluecomm.config import Config
from bluecomm.errors import ShutdownError, SuspendedError
from bluecomm.runtime import fork
from bluecomm.runtime.call import Call, KeptMemory, Result
from bluecomm.runtime.completions import Callback, Completions
from bluecomm.runtime.failure import CLOSED, Reason, failure, late
from bluecomm.runtime.handle import FinishedHandle, RequestHandle
from bluecomm.runtime.parts_handle import PartsHandle

if TYPE_CHECKING:
    from bluecomm._native import Completion, Engine

# Starting a request releases dropped ones that have ended if at least this many are
# kept; always while a transport still reads the memory of a failed one.
_REAP_AT = 256

# Memory that a transport was still reading when its world ended. It is never freed.
_held: list[object] = []


class Requests:
    """Starts requests, waits for them, and keeps their memory until they have ended.

    ``World``, which is derived from this class, begins, suspends and ends them all.

    Args:
        engine: The native engine, which runs them.
        config: Settings.
        rank: This rank.
    """

    def __init__(self, engine: Engine, config: Config, rank: int) -> None:
        self.config = config
        self.rank = rank
        self.pid = os.getpid()
        self._engine = engine
        self._completions = Completions(engine)
        self._lock = threading.Lock()  # held while requests are released
        # What each request uses, by its id. It must live as long as it is listed here.
        self._kept: dict[int, Any] = {}
        self._reap_at = _REAP_AT
        self._dropped: collections.deque[int] = collections.deque()
        self._forgotten: set[int] = set()
        self._hard_limits_s: dict[int, float] = {}
        self._waiting: set[int] = set()
        self._waiters: set[int] = set()
        self._suspensions = 0
        self._is_suspended = False
        self._closed = False

    # -- whether requests can run -----------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the world has ended."""
        return self._closed

    def check_usable(self) -> None:
        """Raise an error unless operations can run here.

        Raises:
            ShutdownError: After ``shutdown``, or in a forked child.
        """
        if self._closed:
            raise ShutdownError(
                "bluecomm was shut down after this process set, process group or "
                "optimizer was made; call bluecomm.init(), then make it again. Call "
                "torch.distributed.destroy_process_group() before bluecomm.shutdown()",
                rank=self.rank,
            )
        if fork.pid != self.pid:
            raise ShutdownError(
                f"this process ({fork.pid}) is a fork of rank {self.rank} "
                f"(pid {self.pid}); only the rank itself communicates",
                rank=self.rank,
            )

    def check_running(self, operation: str, name: str | None) -> None:
        """Raise an error if the world is suspended.

        Raises:
            SuspendedError: The world is suspended.
        """
        if self._is_suspended:
            raise self._suspended(operation, name)

    def _suspended(self, operation: str, name: str | None) -> SuspendedError:
        return SuspendedError.describe(
            "bluecomm is suspended",
            operation=operation,
            name=name,
            rank=self.rank,
            remedy="Call bluecomm.resume() first; outstanding operations then continue",
        )

    # -- starting ---------------------------------------------------------------------

    def start(self, call: Call[Result]) -> RequestHandle[Result]:
        """Start an operation whose name and group are known, and return its handle.

        Raises:
            ShutdownError: After ``shutdown``, or in a forked child.
            SuspendedError: The world is suspended.
        """
        name = call.name
        assert name is not None
        self.check_usable()
        if self._is_suspended:
            raise self._suspended(call.kind, name)
        timeout_s = call.timeout_s
        # The engine stores the call in _kept before a signal handler can run. It stores
        # a nonblocking call before it starts the operation.
        try:
            if call.tickets is not None:
                assert call.group is not None
                # If this raises, the engine lacks the call, so the caller refuses it.
                call.ticket = call.tickets.make(call.group)
            call.limit_s = (
                self.config.operation_timeout_s if timeout_s is None else timeout_s
            )
            if call.blocking or self._completions.is_here():
                self._waiters.add(threading.get_ident())
            number = self._engine.submit(call, self._kept)
        except BaseException:
            if not self._forget_kept(call) and call.tickets is not None:
                call.tickets.withdraw()
            raise
        if number == 0:
            return FinishedHandle(self, number, call.kind, name, call.finish)
        self._note_started(number, timeout_s)
        if call.parts is not None:
            return PartsHandle(self, number, call.kind, name, call.finish, call.parts)
        return RequestHandle(self, number, call.kind, name, call.finish)

    def run_after(
        self,
        handles: Sequence[RequestHandle[Any]],
        call: Call[None],
        started: list[RequestHandle[None]],
    ) -> None:
        """Wait for requests, then run a call without memory.

        The program gets back control after at most about 0.1 s.

        Args:
            handles: The requests.
            call: The call.
            started: Gets the handle of the call, even if a signal handler raises. It
                stays empty if the call has not started, because a request has failed or
                still runs, or another thread has removed the group.
        """
        self.check_usable()
        assert call.name is not None
        call.limit_s = self.config.operation_timeout_s
        self._waiters.add(threading.get_ident())
        ids = [one.number for one in handles]
        numbers: list[int | None] = []
        try:
            # The list has the id before a signal handler can raise.
            numbers.extend(map(self._engine.run_after, [ids], [call]))
        except ValueError:  # there is no such group any more
            pass
        finally:
            for number in numbers:
                if number is not None:
                    kind = RequestHandle if number else FinishedHandle
                    started.append(
                        kind(self, number, call.kind, call.name, call.finish)
                    )

    def refuse(self, call: Call[None], reason: Reason) -> None:
        """Count a call that is not made; see ``Communicator.refuse``."""
        self.check_usable()
        self.check_running(call.kind, call.name)
        text, code, rank = reason
        self._engine.refuse(call, text, call.parameters is None, code, rank)

    def start_request(
        self,
        submit: Callable[[dict[int, Any], Any], int],
        keep: object,
        timeout_s: float | None,
    ) -> int:
        """Start a request about a window and keep what it uses.

        Args:
            submit: Starts the request and returns its id, or 0 if it has ended. Called
                with the table of what is kept and ``keep``, which it enters there.
            keep: Object that must live until the request has ended. It identifies the
                request, so no other one may use it.
            timeout_s: Deadline that the program gave, if any. It is never extended.

        Returns:
            The id of the request; 0 if it has ended.
        """
        try:
            number = submit(self._kept, keep)
        except BaseException:
            self._forget_kept(keep)
            raise
        if number:
            self._note_started(number, timeout_s)
        return number

    def _note_started(self, number: int, timeout_s: float | None) -> None:
        if timeout_s is not None:
            self._hard_limits_s[number] = timeout_s
        if len(self._kept) >= self._reap_at:
            self.reap()

    def _forget_kept(self, keep: object) -> bool:
        """Drop a request whose handle an exception of a signal handler has lost.

        Returns:
            Whether the engine has got it.
        """
        numbers = [number for number, kept in list(self._kept.items()) if kept is keep]
        for number in numbers:
            self.forget(number)
        return bool(numbers)

    # -- waiting ----------------------------------------------------------------------

    def output(self, number: int) -> tuple[Any, list[int]]:
        """Return the result that the engine allocated: memory and rows per source."""
        return self._engine.output(number)

    def source_of(self, number: int) -> int:
        """Return the rank whose message a receive has taken."""
        return self._engine.source_of(number)

    def is_done(self, number: int) -> bool:
        """Return whether a request has ended."""
        return self._closed or self._engine.done(number)

    def wait(self, number: int, timeout_s: float | None) -> Completion | None:
        """Wait until a request has ended; return ``None`` if ``timeout_s`` passed.

        Raises:
            SuspendedError: The engine was suspended before the request had ended.
        """
        return self._wait(number, None, timeout_s)[0]

    def wait_part(
        self, number: int, nbytes: int, timeout_s: float | None
    ) -> tuple[Completion | None, int]:
        """Wait until a request has ended, or until ``nbytes`` of its result are final.

        Returns:
            The outcome of a request that has ended, and how many of the first bytes of
            the result are final. They are fewer, without an outcome, if ``timeout_s``
            passed.

        Raises:
            SuspendedError: As for ``wait``.
        """
        return self._wait(number, nbytes, timeout_s)

    def _wait(
        self, number: int, nbytes: int | None, timeout_s: float | None
    ) -> tuple[Completion | None, int]:
        self.check_usable()
        suspensions = self._suspensions
        self._waiting.add(number)
        try:
            if not self._completions.is_here():
                self._waiters.add(threading.get_ident())
            elif not self._engine.done(number):  # most callbacks need not wait
                self._waiters.add(threading.get_ident())
                if timeout_s is None:
                    self._completions.hand_over()
            limit_s = float("inf") if timeout_s is None else timeout_s
            final = 0
            if nbytes is None:
                completion = self._engine.wait(number, limit_s)
            else:
                completion, final = self._engine.wait_part(number, nbytes, limit_s)
            was_suspended = self._is_suspended or self._suspensions > suspensions
            if completion is None and final < (nbytes or 1) and was_suspended:
                raise self._suspended("wait", None)
            return completion, final
        finally:
            self._waiting.discard(number)

    def on_finish(self, number: int, callback: Callback) -> None:
        """Call ``callback`` once a request has ended; see ``Handle.on_finish``."""
        if not self._closed:
            self.check_usable()
        self._completions.add(number, callback)

    def blocks_program(self, number: int) -> bool:
        """Return whether the only thread that ever waited here waits for a request.

        If so, no other thread will start the operations that other ranks wait for.
        """
        return number in self._waiting and len(self._waiters) == 1

    def is_in_use(self, address: int, nbytes: int) -> bool:
        """Return whether an outstanding request uses some of this memory."""
        self.reap()
        return any(
            kept.uses(address, nbytes)
            for kept in list(self._kept.values())
            if isinstance(kept, Call | KeptMemory)
        )

    def is_waited_for(self, number: int) -> bool:
        """Return whether a thread of this process waits for a request."""
        return number in self._waiting

    def is_standing(self, number: int) -> bool:
        """Return whether a request waits for what may come at any time."""
        kept = self._kept.get(number)
        return isinstance(kept, Call) and kept.is_standing

    def has_hard_deadline(self, number: int) -> bool:
        """Return whether the program gave a request's deadline, which then stands."""
        return number in self._hard_limits_s

    def take_late_failure(self, call: Call[Any]) -> Exception | None:
        """Remove the failures that no call has raised, and return them as one.

        Args:
            call: The call that raises them, which has succeeded.
        """
        found = None if self._closed else self._engine.take_late_failure()
        if found is None:
            return None
        kind, name = call.kind, call.name
        assert name is not None
        error = failure(
            found,
            kind=kind,
            name=name,
            rank=self.rank,
            timeout_s=self.config.operation_timeout_s,
            prefix=f"{kind} '{name}' on rank {self.rank} was carried out; ",
        )
        return late(error)

    def limit_s(self, number: int) -> float:
        """Return the deadline that a request was started with, in seconds."""
        return self._hard_limits_s.get(number, self.config.operation_timeout_s)

    def started(self) -> list[int]:
        """Return the requests that this rank has started and that have not ended.

        Receives whose message may never come are left out.
        """
        numbers = [request["id"] for request in self._engine.pending()]
        return [number for number in numbers if not self.is_standing(number)]

    def ends_within(self, number: int, timeout_s: float | None) -> bool:
        """Return whether a request ends within a limit, or has been released."""
        try:
            return self.wait(number, timeout_s) is not None
        except ValueError:
            return True

    # -- releasing --------------------------------------------------------------------

    def release(self, number: int) -> None:
        """Release a request that has been waited for."""
        self._hard_limits_s.pop(number, None)
        if self._closed:
            return
        try:
            if self._engine.release(number):
                self._kept.pop(number, None)
            else:
                self._reap_at = 0
        except BaseException:
            # A signal handler may raise once the engine has forgotten the id.
            if number not in self._engine.held():
                self._kept.pop(number, None)
            raise

    def forget(self, number: int) -> None:
        """Release a request that nobody will wait for, as soon as it has ended.

        The garbage collector calls this at any point, so it takes no lock.
        """
        self._dropped.append(number)

    def abandon(self, number: int, why: str) -> None:
        """End a request that nobody waits for with a failure, unless it has ended."""
        if not self._closed:
            with contextlib.suppress(ValueError):  # it has been released
                self._engine.fail(number, CLOSED, why)
        self.forget(number)

    def reap(self) -> None:
        """Release dropped requests that have ended, and free unused tensors."""
        with self._lock:
            # Requests that end after this are found by the next call.
            held = bool(self._engine.held())
            for number in self._engine.finished():
                self._kept.pop(number, None)
            # A program may have many requests outstanding.
            self._reap_at = 0 if held else max(_REAP_AT, 2 * len(self._kept))
            while self._dropped:
                self._forgotten.add(self._dropped.popleft())
            over = {n for n in self._forgotten if n not in self._kept}
            self._forgotten -= over
        for number in over:
            self.release(number)

    def _end(self) -> None:
        """Free what requests have used, unless a transport reads it.

        The engine has been closed, so all requests have ended.
        """
        self._closed = True
        _held.extend(self._kept[n] for n in self._engine.held() if n in self._kept)
        self._kept.clear()
