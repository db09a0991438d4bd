"""Calls a function for many items at once, in threads that nobody must wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

# After this long, the user is told which items are awaited.
TELL_AFTER_S = 10.0

T = TypeVar("T")


def for_each(
    items: Sequence[T],
    body: Callable[[T], None],
    tell: Callable[[Sequence[T]], None] | None = None,
) -> None:
    """Call ``body`` for all items in parallel, then raise the first error, if any.

    The threads are daemons, so that neither Ctrl-C nor the end of this process waits
    for a silent host.

    Args:
        items: The items.
        body: Called once with each.
        tell: Called once with the items that still run after a while.
    """
    errors: list[BaseException] = []

    def call(item: T) -> None:
        try:
            body(item)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=[it], daemon=True) for it in items]
    for thread in threads:
        thread.start()
    tell_at = time.monotonic() + TELL_AFTER_S
    for thread in threads:
        thread.join(max(0.0, tell_at - time.monotonic()) if tell else None)
    running = [
        it for it, thread in zip(items, threads, strict=True) if thread.is_alive()
    ]
    if tell is not None and running:
        tell(running)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
