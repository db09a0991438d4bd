"""Progress of an epoch: a bar on a terminal, a few lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

# Takes this rank's samples of a step, and the seconds that it waited for them.
Advance = Callable[[int, float], None]
# Takes the number of steps so far, and the text about them.
_Show = Callable[[int, str], None]
# Between two lines.
_LINE_S = 10.0


@contextlib.contextmanager
def show_progress(
    epoch: int, steps: int, ranks: int, is_shown: bool
) -> Iterator[Advance]:
    """Show steps, samples per second and the share of waits for data.

    Args:
        epoch: Number of the epoch.
        steps: Its steps.
        ranks: Number of ranks; each is taken to be as fast as this one.
        is_shown: Whether this rank shows anything.
    """
    if not is_shown:
        yield lambda samples, wait_s: None
        return
    with (_bar if sys.stderr.isatty() else _lines)(epoch, steps) as show:
        began = time.perf_counter()
        done, samples, wait_s = 0, 0, 0.0

        def advance(more: int, waited_s: float) -> None:
            nonlocal done, samples, wait_s
            done, samples, wait_s = done + 1, samples + more, wait_s + waited_s
            elapsed_s = time.perf_counter() - began
            show(done, describe_rate(samples * ranks, elapsed_s, wait_s))

        yield advance


@contextlib.contextmanager
def _bar(epoch: int, steps: int) -> Iterator[_Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    rate = TextColumn("{task.fields[rate]}")
    with Progress(*columns, rate, console=Console(file=sys.stderr)) as progress:
        task = progress.add_task(f"epoch {epoch}", total=steps, rate="")
        yield lambda done, text: progress.update(task, completed=done, rate=text)


@contextlib.contextmanager
def _lines(epoch: int, steps: int) -> Iterator[_Show]:
    """Print a line now and then, and the last one when the pass ends."""
    printed_at = time.perf_counter()
    waiting = ""

    def show(done: int, text: str) -> None:
        nonlocal printed_at, waiting
        waiting = f"epoch {epoch}: {done}/{steps} steps, {text}"
        now = time.perf_counter()
        if now - printed_at >= _LINE_S:
            print(waiting, file=sys.stderr, flush=True)
            printed_at, waiting = now, ""

    try:
        yield show
    finally:
        if waiting:
            print(waiting, file=sys.stderr, flush=True)


def describe_rate(samples: int, elapsed_s: float, wait_s: float) -> str:
    """Return samples per second, and the share of the time that went into waits."""
    elapsed_s = max(elapsed_s, 1e-9)
    share = 100 * wait_s / elapsed_s
    return f"{samples / elapsed_s:.0f} samples/s, waiting for data {share:.0f} %"
