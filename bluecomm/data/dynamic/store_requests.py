"""Requests to torch's store with a deadline."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

_Value = TypeVar("_Value")
_Job: TypeAlias = "tuple[Callable[[], Any], concurrent.futures.Future[Any]]"


class StoreRequests:
    """Makes requests in a thread of its own, so that the caller need not wait longer.

    Torch has a deadline for waits, but not for other requests, which a host that has
    stopped would hold. The thread begins with the first request.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_late = False

    def make(self, request: Callable[[], _Value], limit_s: float) -> _Value:
        """Return what a request returns, or raise what it raises; for one thread.

        Raises:
            TimeoutError: It takes too long, or an earlier one did. The thread goes on
                with it, so none can follow.
        """
        if self._is_late:
            raise TimeoutError("an earlier request has not been answered")
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="bluecomm store", daemon=True
            )
            self._thread.start()
        made: concurrent.futures.Future[_Value] = concurrent.futures.Future()
        self._jobs.put((request, made))
        concurrent.futures.wait([made], limit_s)
        if not made.done():
            self._is_late = True
            raise TimeoutError(f"no answer within {limit_s:g} s")
        return made.result()

    def close(self) -> None:
        """End the thread, once the request that it makes has ended."""
        self._jobs.put(None)
        if self._thread is not None and not self._is_late:
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            request, made = job
            try:
                made.set_result(request())
            except BaseException as error:
                made.set_exception(error)
