"""Shows the output of the ranks, as whole lines with a prefix, from its own thread.

A terminal may block (a pager, Ctrl-S), but the driver's loop must go on sending
heartbeats to the agents. So a thread writes, and reports how much it has written; the
ranks' output windows bound the amount that waits.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import TextIO

from bfrun.output.folding import TracebackFolder
from bfrun.output.lines import LineCutter
from bfrun.output.logs import LogFiles
from bfrun.output.terminal import Terminal
from bfrun.wording import format_ranks

TAIL_LINES = 20
_LOOK_S = 0.1
# A traceback is complete if nothing follows it for this long.
_HOLD_S = 0.5

_Output = tuple[int, str, bytes]


@dataclasses.dataclass(frozen=True)
class _Remark:
    """A remark of bfrun itself, to some ranks or to the user alone."""

    text: str
    ranks: Sequence[int]


_Item = _Output | _Remark


class Printer:
    """Shows output in a thread that it owns.

    Args:
        on_shown: Called in the thread with (rank, nbytes) after output was shown.
        only: Ranks whose output is shown; if empty, all.
        timestamps: Whether each line begins with the time.
        logs: Files for all output. The printer closes them.
        prompts: Whether to show unfinished lines of rank 0, which reads the keyboard.
        out: Stream for the ranks' stdout.
        err: Stream for the ranks' stderr and for remarks.
    """

    def __init__(
        self,
        on_shown: Callable[[int, int], None],
        *,
        only: Collection[int] = (),
        timestamps: bool = False,
        logs: LogFiles | None = None,
        prompts: bool = False,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        self._on_shown = on_shown
        self._only = frozenset(only)
        self._timestamps = timestamps
        self._logs = logs
        self._prompts = prompts
        self._terminal = Terminal(out or sys.stdout, err or sys.stderr)
        self._cutters: dict[tuple[int, str], LineCutter] = {}
        self._folder = TracebackFolder()
        self._held_since: dict[int, float] = {}
        self._repeats_at: float | None = None
        self._tails: dict[int, collections.deque[str]] = {}
        # Only one thread changes each of these counters.
        self._fed = self._done = 0
        self._defective = False
        self._taken_at = time.monotonic()
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="output", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether output waits to be shown, or is being written."""
        return self._fed != self._done

    @property
    def taken_at(self) -> float:
        """Time at which output was last written, on the clock ``time.monotonic``."""
        return self._taken_at

    @property
    def broken(self) -> bool:
        """Whether nobody reads the output any more."""
        return self._terminal.broken

    @property
    def terminal_closed(self) -> bool:
        """Whether nobody reads the output because the terminal has been closed."""
        return self._terminal.closed

    def feed(self, rank: int, stream: str, data: bytes) -> None:
        """Queue output of a rank; ``b""`` means that the stream has ended."""
        self._fed += 1
        self._queue.put((rank, stream, data))

    def say(self, text: str, ranks: Sequence[int] = ()) -> None:
        """Queue a remark of bfrun itself, of one or more lines.

        A remark to some ranks is shown once, with their prefix, and is written to the
        log of each of them.
        """
        self._fed += 1
        self._queue.put(_Remark(text, ranks))

    def close(self, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Show everything that is queued, then end the thread and close the logs.

        Args:
            give_up: Called now and then; if it returns true, the rest is dropped.

        Returns:
            Whether everything has been shown.
        """
        self._queue.put(None)
        while self._thread.is_alive() and not give_up():
            self._thread.join(_LOOK_S)
        if self._thread.is_alive():
            return False
        if self._logs is not None:
            self._logs.close()
        return True

    def tails(self) -> dict[int, list[str]]:
        """Return the last lines of each rank's stderr. Call it after ``close``."""
        return {rank: list(tail) for rank, tail in self._tails.items()}

    def shown(self, ranks: Sequence[int]) -> list[int]:
        """Return those of ``ranks`` whose output is shown."""
        return [rank for rank in ranks if not self._only or rank in self._only]

    def _work(self) -> None:
        closing = False
        while not closing:
            items = self._take()
            closing = bool(items) and items[-1] is None
            try:
                self._show_all(items, closing)
            except Exception:
                # Without the reports below, the ranks would block on their output
                # forever.
                self._tell_defect()
            for item in items:
                if isinstance(item, tuple):
                    self._on_shown(item[0], len(item[2]))
            self._done += sum(item is not None for item in items)

    def _tell_defect(self) -> None:
        if not self._defective:
            self._defective = True
            with contextlib.suppress(OSError, ValueError):
                traceback.print_exc()

    def _show_all(self, items: Sequence[_Item | None], closing: bool) -> None:
        for item in items:
            if isinstance(item, _Remark):
                self._show_remark(item)
            elif item is not None:
                self._show(*item)
            if item is not None:
                self._taken_at = time.monotonic()
        if closing:
            self._finish_lines()
        self._settle(closing)
        self._terminal.flush()

    def _take(self) -> list[_Item | None]:
        """Return the queued items in order, waiting a moment for the first."""
        items: list[_Item | None] = []
        try:
            items.append(self._queue.get(timeout=_LOOK_S))
            while items[-1] is not None and len(items) < 256:
                items.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return items

    def _show(self, rank: int, stream: str, data: bytes) -> None:
        cutter = self._cutters.setdefault((rank, stream), LineCutter())
        if data:
            self._log(rank, stream, data)
        for line in cutter.feed(data) if data else cutter.finish():
            self._line(rank, stream, line)

    def _log(self, rank: int, stream: str, data: bytes) -> None:
        warning = self._logs and self._logs.write(rank, stream, data)
        if warning:
            self._terminal.write_line("stderr", warning)

    def _show_remark(self, remark: _Remark) -> None:
        for rank in remark.ranks:
            self._log(rank, "stderr", f"{remark.text}\n".encode())
        prefix = ""
        if remark.ranks:
            shown = self.shown(remark.ranks)
            if not shown:
                return
            prefix = self._prefix(shown)
        for line in remark.text.split("\n"):
            self._terminal.write_line("stderr", prefix + line)

    def _finish_lines(self) -> None:
        """Show the unfinished lines of streams whose end was not reported."""
        for (rank, stream), cutter in self._cutters.items():
            for line in cutter.finish():
                self._line(rank, stream, line)

    def _line(self, rank: int, stream: str, line: str) -> None:
        lines = [line]
        if stream == "stderr":
            tail = self._tails.setdefault(rank, collections.deque(maxlen=TAIL_LINES))
            tail.append(line)
            lines = self._folder.line(rank, line)
            if rank in self._folder.holding():
                self._held_since[rank] = time.monotonic()
        self._write(rank, stream, lines)

    def _write(self, rank: int, stream: str, lines: list[str]) -> None:
        if not self._only or rank in self._only:
            for line in lines:
                self._terminal.write_line(stream, self._prefix([rank]) + line)

    def _prefix(self, ranks: list[int]) -> str:
        text = f"[{format_ranks(ranks)}] "
        if self._timestamps:
            now = datetime.datetime.now().isoformat(" ", "milliseconds")
            return f"{now} {text}"
        return text

    def _settle(self, closing: bool) -> None:
        """Show lines that were held back long enough, and the live line."""
        now = time.monotonic()
        for rank in self._folder.holding():
            if closing or now - self._held_since[rank] > _HOLD_S:
                self._write(rank, "stderr", self._folder.flush(rank))
                self._repeats_at = self._repeats_at or now + _HOLD_S
        if closing or (self._repeats_at is not None and now > self._repeats_at):
            self._repeats_at = None
            for ranks, remark in self._folder.take_repeats():
                shown = self.shown(ranks)
                if shown:
                    line = self._prefix(shown) + remark
                    self._terminal.write_line("stderr", line)
        if self._terminal.has_live_line:
            self._terminal.show_live("" if closing else self._live_line())
            return
        for (rank, stream), cutter in self._cutters.items():
            bar = cutter.due_bar()
            if bar:
                self._write(rank, stream, [bar])

    def _live_line(self) -> str:
        """Return the progress bar, or the prompt, of the lowest rank that has one."""
        for rank, stream in sorted(self._cutters):
            cutter = self._cutters[rank, stream]
            text = cutter.bar
            if not text and self._prompts and rank == 0:
                text = cutter.partial
            if text and (not self._only or rank in self._only):
                return self._prefix([rank]) + text
        return ""
