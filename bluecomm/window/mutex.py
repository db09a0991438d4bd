"""Mutexes: each window has one mutex at each rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from bluecomm.topology.rank_lists import check_ranks
from bluecomm.window.live import LiveWindow, find

__all__ = ["win_lock", "win_mutex"]


@contextlib.contextmanager
def win_mutex(
    name: str,
    for_self: bool = False,
    ranks: Iterable[int] | None = None,
    *,
    timeout_s: float | None = None,
) -> Iterator[None]:
    """Hold the mutexes that a window has at some ranks.

    One rank at a time holds a mutex; the ranks that wait for it get it in the order of
    their requests. If its holder dies, the next rank gets it. It excludes only other
    users of the mutex, that is, ``win_mutex`` and the puts, gets and updates with
    ``require_mutex``. The mutexes of several ranks are taken in ascending order. It is
    not reentrant.

    Args:
        name: Name of the window.
        for_self: Hold the mutex at this rank and ignore ``ranks``.
        ranks: Ranks whose mutexes to hold. Default: the out-neighbors.
        timeout_s: Seconds to wait for each mutex. Default: the configured deadline.

    Raises:
        KeyError: No window has that name. The error is a ``ValueError``, too.
        TypeError: ``ranks`` is not an iterable of integers.
        ValueError: A rank is out of range.
        PeerLostError: A rank whose mutex is requested is lost. Not raised in a job that
            survives losses, where such a mutex excludes nobody.
        CommunicationTimeout: A mutex was not released in time; the text names its
            holder.
    """
    window = find("win_mutex", name)
    limit_s = window.timeout_s("win_mutex", timeout_s)
    if for_self:
        owners = [window.comm.rank]
    else:
        given = list(window.neighbors.out_weights) if ranks is None else ranks
        owners = sorted(set(check_ranks(given, window.comm.size, "win_mutex: ranks")))
    with contextlib.ExitStack() as stack:
        for owner in owners:
            stack.enter_context(_held(window, owner, limit_s, timeout_s))
        yield


@contextlib.contextmanager
def win_lock(name: str) -> Iterator[None]:
    """Change the tensor of a window atomically, as seen by other ranks.

    Ranks that call ``win_get`` see the value from before the block until the block
    ends, and all changes of the block from then on.

    Args:
        name: Name of the window.

    Raises:
        KeyError: No window has that name. The error is a ``ValueError``, too.
    """
    find("win_lock", name)
    yield
    find("win_lock", name).show()


@contextlib.contextmanager
def _held(
    window: LiveWindow, owner: int, limit_s: float, timeout_s: float | None
) -> Iterator[None]:
    # The engine appends the request's id before a signal handler can raise.
    asked: list[Any] = []
    native = window.native
    try:
        window.start(
            "win_mutex",
            lambda kept, keep: native.lock(owner, limit_s, kept, keep),
            asked,
            timeout_s,
        ).wait()
        yield
    finally:
        for request in asked:
            native.unlock(owner, request)
