"""A progress bar over the steps of an epoch, on the terminal of rank 0."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

# Takes this rank's samples of a step, and the seconds that it waited for them.
Advance = Callable[[int, float], None]


@contextlib.contextmanager
def progress_bar(
    epoch: int, steps: int, ranks: int, is_shown: bool
) -> Iterator[Advance]:
    """Show steps, samples per second and the share of waits for data.

    It shows nothing if the standard error is not a terminal.

    Args:
        epoch: Number of the epoch.
        steps: Its steps.
        ranks: Number of ranks; each is taken to be as fast as this one.
        is_shown: Whether this rank shows the bar.
    """
    if not (is_shown and sys.stderr.isatty()):
        yield lambda samples, wait_s: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    rate = TextColumn("{task.fields[rate]}")
    with Progress(*columns, rate, console=Console(file=sys.stderr)) as progress:
        task = progress.add_task(f"epoch {epoch}", total=steps, rate="")
        began = time.perf_counter()
        samples, wait_s = 0, 0.0

        def advance(more: int, waited_s: float) -> None:
            nonlocal samples, wait_s
            samples, wait_s = samples + more, wait_s + waited_s
            text = describe_rate(samples * ranks, time.perf_counter() - began, wait_s)
            progress.update(task, advance=1, rate=text)

        yield advance


def describe_rate(samples: int, elapsed_s: float, wait_s: float) -> str:
    """Return samples per second, and the share of the time that went into waits."""
    elapsed_s = max(elapsed_s, 1e-9)
    share = 100 * wait_s / elapsed_s
    return f"{samples / elapsed_s:.0f} samples/s, waiting for data {share:.0f} %"
