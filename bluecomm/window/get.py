"""Reading the own values of neighbors."""

from __future__ import annotations

from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.neighbor_weights import SrcWeights
from bluecomm.runtime import Handle
from bluecomm.window.live import find
from bluecomm.window.mutex import win_mutex

__all__ = ["win_get", "win_get_nonblocking"]


def _win_get(
    form: Form,
    /,
    name: str,
    src_weights: SrcWeights | None = None,
    require_mutex: bool = False,
    *,
    timeout_s: float | None = None,
) -> Handle[bool]:
    """Read the own value of each in-neighbor ``j``, times ``src_weights[j]``.

    The value replaces the one that ``j`` has left here, for the next ``win_update``. A
    get reads the value that ``j`` has published last, as a whole. A rank publishes its
    own value in ``win_create``, ``win_update`` and ``win_get``, and at the end of
    ``win_lock``.

    Args:
        name: Name of the window.
        src_weights: Weight of each in-neighbor to read. Default: all in-neighbors with
            weight 1.
        require_mutex: Hold the mutexes of these in-neighbors during the get.
        timeout_s: Seconds until it fails. Default: the configured deadline.

    Returns:
        ``True``.

    Raises:
        KeyError: No window has that name.
        ValueError: A rank is not an in-neighbor, a weight is not a finite number, or
            the window holds integers and a weight is neither 1 nor 0.
        PeerLostError: A neighbor is lost. Not raised in a job that survives losses,
            where the value that a lost neighbor has left stays.
        CommunicationTimeout: Some neighbors did not answer in time.
    """
    window = find("win_get", name)
    neighbors = window.neighbors
    default = dict.fromkeys(neighbors.in_weights, 1.0)
    sources = neighbors.weights("win_get", "src_weights", src_weights, default)
    limit_s = window.timeout_s("win_get", timeout_s)
    window.show()

    def start() -> Handle[bool]:
        return window.start(
            "win_get",
            lambda kept, keep: window.get(
                "win_get",
                sources,
                timeout_s=limit_s,
                blocking=form.blocking,
                kept=kept,
                keep=keep,
            ),
            [],
            timeout_s,
        )

    if not require_mutex:
        return start()
    ranks = [rank for rank, _ in sources]
    with win_mutex(name, ranks=ranks, timeout_s=timeout_s):
        start().wait()
    return window.finished("win_get", lambda _: True)


win_get = blocking(_win_get)
win_get_nonblocking = nonblocking(
    _win_get,
    "With ``require_mutex`` the function returns when the get has ended.",
    has_input=False,
)
