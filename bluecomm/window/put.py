"""Leaving values in the memory that neighbors keep for this rank."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.neighbor_weights import DstWeights
from bluecomm.ops.tensor import span
from bluecomm.runtime import Handle
from bluecomm.runtime.call import KeptMemory
from bluecomm.window.live import LiveWindow, find
from bluecomm.window.mutex import win_mutex

__all__ = [
    "win_accumulate",
    "win_accumulate_nonblocking",
    "win_put",
    "win_put_nonblocking",
]


def _win_put(
    form: Form,
    /,
    tensor: torch.Tensor,
    name: str,
    self_weight: float | None = None,
    dst_weights: DstWeights | None = None,
    require_mutex: bool = False,
    *,
    timeout_s: float | None = None,
) -> Handle[bool]:
    """Leave ``dst_weights[j] * tensor`` with each out-neighbor ``j``.

    The product is rounded to the tensor's type before it leaves this rank.

    The value replaces the one that this rank has left there before, atomically:
    neighbor ``j`` sees the old value or the new one. ``j`` does not have to call
    anything. When all values have arrived, ``tensor`` is multiplied by ``self_weight``
    in place.

    Args:
        tensor: Tensor of the window's shape and type.
        name: Name of the window.
        self_weight: Factor for ``tensor`` after the put. Default: 1.
        dst_weights: Weight of each target, which must be an out-neighbor; a list of
            ranks means weight 1. Default: all out-neighbors with weight 1.
        require_mutex: Hold the mutexes of the targets during the put.
        timeout_s: Seconds until it fails. Default: the configured deadline.

    Returns:
        ``True``.

    Raises:
        KeyError: No window has that name.
        TypeError: The argument is not a tensor.
        ValueError: The tensor's shape or type differs from the window's, a target is
            not an out-neighbor, a weight is not a finite number, or the window holds
            integers and a weight is neither 1 nor 0.
        PeerLostError: A target is lost; the other targets have the value. Not raised in
            a job that survives losses, where nothing is put to a lost target.
        CommunicationTimeout: Some targets did not answer in time.
    """
    weights = self_weight, dst_weights
    return _start("win_put", form, tensor, name, weights, require_mutex, timeout_s)


def _win_accumulate(
    form: Form,
    /,
    tensor: torch.Tensor,
    name: str,
    self_weight: float | None = None,
    dst_weights: DstWeights | None = None,
    require_mutex: bool = False,
    *,
    timeout_s: float | None = None,
) -> Handle[bool]:
    """Add ``dst_weights[j] * tensor`` to what this rank has left with neighbor ``j``.

    Each value is counted once, whatever ``j`` does at the same time. Arguments, result
    and errors are those of ``win_put``.
    """
    weights = self_weight, dst_weights
    return _start(
        "win_accumulate", form, tensor, name, weights, require_mutex, timeout_s
    )


def _start(
    operation: str,
    form: Form,
    tensor: torch.Tensor,
    name: str,
    weights: tuple[float | None, DstWeights | None],
    require_mutex: bool,
    timeout_s: float | None,
) -> Handle[bool]:
    self_weight, dst_weights = weights
    window = find(operation, name)
    source = window.as_value(tensor, operation, timeout_s)
    neighbors = window.neighbors
    targets = neighbors.weights(
        operation, "dst_weights", dst_weights, neighbors.out_weights
    )
    own = 1.0 if self_weight is None else neighbors.self_weight(operation, self_weight)
    limit_s = window.timeout_s(operation, timeout_s)
    with_p = window.carries_p

    def finish(_: int) -> bool:
        _scale(window, tensor, own, with_p)
        return True

    def start(finish: Callable[[int], bool]) -> Handle[bool]:
        return window.start(
            operation,
            lambda kept, keep: window.put(
                operation,
                source,
                targets,
                accumulates=operation == "win_accumulate",
                timeout_s=limit_s,
                blocking=form.blocking,
                kept=kept,
                keep=keep,
            ),
            KeptMemory(source, span(source)),
            timeout_s,
            finish=finish,
        )

    if not require_mutex and not window.awaits_answers(targets):
        return start(finish)
    ranks = [rank for rank, _ in targets] if require_mutex else []
    with win_mutex(name, ranks=ranks, timeout_s=timeout_s):
        start(lambda _: True).wait()
    return window.finished(operation, finish)


def _scale(
    window: LiveWindow, tensor: torch.Tensor, weight: float, with_p: bool
) -> None:
    if weight == 1.0:
        return
    with torch.no_grad():
        if tensor.is_floating_point():
            tensor.mul_(weight)
        else:
            tensor.zero_()
    if with_p:
        window.native.scale_p(weight)


_NOTE = """\
The wait multiplies the tensor by ``self_weight``. Several puts may be outstanding on
one window; they take effect in the order of the calls. With ``require_mutex`` the
function returns when the put has ended."""

win_put = blocking(_win_put)
win_put_nonblocking = nonblocking(_win_put, _NOTE)
win_accumulate = blocking(_win_accumulate)
win_accumulate_nonblocking = nonblocking(_win_accumulate, _NOTE)
