"""Notices that an error ends the program of this process, before the process ends.

After an uncaught exception, Python joins threads, calls exit handlers and takes modules
apart, which takes seconds on a busy machine. The other ranks should not wait for that.
So the watch wraps ``sys.excepthook``, ``threading.excepthook`` and ``sys.exit``.
"""

from __future__ import annotations

import dataclasses
import dis
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType, TracebackType
from typing import Any

from bluecomm.errors import PeerLostError

_MAX_LINE = 300


@dataclasses.dataclass(frozen=True)
class FailedExit:
    """An error that ends the program.

    Attributes:
        cause: A short text such as ``KeyError`` or ``exit 3``.
        deed: Phrase for the program's last act, such as ``raised KeyError``.
        reason: First line of the error's text, or an error that led to it.
        status: Exit status that the process will have.
        peers: Lost ranks that the error names.
    """

    cause: str
    deed: str
    reason: str
    status: int
    peers: tuple[int, ...] = ()


class ExitWatch:
    """Watches how the program of this process ends, between ``install`` and ``remove``.

    An error counts only if it ends the process: not in an interactive interpreter or a
    notebook, not in a forked child, and not if the program itself calls the hook. An
    exception in a thread other than the main one ends only the thread.

    Args:
        on_failure: Called once, when an error ends the program.
        on_thread: Called with the name of a thread and the error that has ended it.
    """

    def __init__(
        self,
        on_failure: Callable[[FailedExit], None],
        on_thread: Callable[[str, str], None],
    ) -> None:
        self._on_failure = on_failure
        self._on_thread = on_thread
        self._hooks: tuple[_Hook, ...] = ()
        self._pid = 0
        self._failed: FailedExit | None = None
        # The last call of sys.exit with an error, and the outermost frame at that time.
        self._exit_call: tuple[FailedExit, FrameType] | None = None

    def install(self) -> None:
        """Start to watch."""
        self.remove()
        self._pid = os.getpid()
        self._hooks = (
            _Hook(sys, "excepthook", self._excepthook),
            _Hook(threading, "excepthook", self._thread_hook),
            _Hook(sys, "exit", self._exit),
        )

    def remove(self) -> None:
        """Stop watching, and unwrap the functions that nobody has wrapped again."""
        self._pid = 0
        for hook in self._hooks:
            hook.remove()

    def failure(self) -> FailedExit | None:
        """Return the error that ends the program. Call it when the interpreter exits.

        Reports the error if no hook has done so. That is the case after ``sys.exit``,
        whose exception the program may catch, and if somebody has replaced a hook.
        """
        if self._watches() and not _is_interactive():
            error = getattr(sys, "last_value", None)
            if error is not None:
                self._fail(_from_exception(error))
            elif self._exit_call is not None:
                failed, outermost = self._exit_call
                if not _has_returned(outermost):
                    self._fail(failed)
        return self._failed

    def _watches(self) -> bool:
        return self._pid == os.getpid()

    def _fail(self, failed: FailedExit) -> None:
        if self._failed is None:
            self._failed = failed
            self._on_failure(failed)

    def _excepthook(
        self,
        call: Callable[..., Any],
        kind: type[BaseException],
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            call(kind, error, trace)  # shows the traceback
        finally:
            in_main = threading.current_thread() is threading.main_thread()
            ends = in_main and not _is_interactive() and not _runs_program()
            if self._watches() and ends and error is not None:
                self._fail(_from_exception(error))

    def _thread_hook(self, call: Callable[..., Any], args: Any) -> None:
        try:
            call(args)
        finally:
            if self._watches() and not issubclass(args.exc_type, SystemExit):
                name = "a thread" if args.thread is None else args.thread.name
                error = args.exc_value or args.exc_type()
                self._on_thread(name, _describe(error))

    def _exit(self, call: Callable[..., Any], status: Any = None) -> None:
        if threading.current_thread() is threading.main_thread():
            failed = _from_status(status)
            *_, outermost = _frames()
            self._exit_call = None if failed.status == 0 else (failed, outermost)
        call(status)


class _Hook:
    """Wraps a function of a module until ``remove`` is called.

    Other code may have wrapped or stored it since, so it stays callable.
    """

    def __init__(
        self, module: ModuleType, name: str, function: Callable[..., Any]
    ) -> None:
        self._module = module
        self._name = name
        self._function: Callable[..., Any] | None = function
        self._replaced: Callable[..., Any] = getattr(module, name)
        setattr(module, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            return self._replaced(*args, **kwargs)
        return self._function(self._replaced, *args, **kwargs)

    def remove(self) -> None:
        self._function = None
        if getattr(self._module, self._name) is self:
            setattr(self._module, self._name, self._replaced)


def _from_exception(error: BaseException) -> FailedExit:
    name = type(error).__name__
    return FailedExit(
        cause=name,
        deed=f"raised {name}",
        reason=_text(error),
        status=1,
        peers=_lost_peers(error),
    )


def _from_status(status: Any) -> FailedExit:
    """Return the failure of ``sys.exit(status)``.

    If it was called while an exception was handled, that exception is the reason.
    """
    code = 0 if status is None else 1
    if isinstance(status, int):
        code = status & 0xFF
    handled = sys.exc_info()[1]
    return FailedExit(
        cause=f"exit {code}",
        deed=f"called sys.exit({_first_line(repr(status))})",
        reason="" if handled is None else _describe(handled),
        status=code,
        peers=_lost_peers(handled),
    )


def _lost_peers(error: BaseException | None) -> tuple[int, ...]:
    """Return the lost ranks that an error, or an error that caused it, names."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, PeerLostError):
            return tuple(error.peers)
        hidden = error.__suppress_context__
        error = error.__cause__ or (None if hidden else error.__context__)
    return ()


def _describe(error: BaseException) -> str:
    name, text = type(error).__name__, _text(error)
    return f"{name}: {text}" if text else name


def _text(error: BaseException) -> str:
    try:
        return _first_line(str(error))
    except Exception:
        return ""


def _first_line(text: str) -> str:
    line = next((line for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}..."


def _frames() -> Iterator[FrameType]:
    """Return the frames of the program that called a hook, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _runs_program() -> bool:
    """Return whether the program still runs.

    The interpreter calls the hook after it has left all frames of the program.
    """
    return any(frame.f_code.co_name == "<module>" for frame in _frames())


def _has_returned(frame: FrameType) -> bool:
    """Return whether a frame ended by returning, and not by an exception."""
    operation = frame.f_code.co_code[frame.f_lasti]
    return dis.opname[operation].startswith("RETURN")


def _is_interactive() -> bool:
    """Return whether the interpreter continues after an uncaught exception."""
    flags = sys.flags.interactive or sys.flags.inspect
    return bool(flags or os.environ.get("PYTHONINSPECT")) or hasattr(sys, "ps1")
