"""Combining the values that neighbors have left with the own value."""

from __future__ import annotations

import contextlib

import torch

from bluecomm.ops.neighbor_weights import SrcWeights
from bluecomm.window.live import LiveWindow, find
from bluecomm.window.mutex import win_mutex

__all__ = ["get_win_version", "win_update", "win_update_then_collect"]


def win_update(
    name: str,
    self_weight: float | None = None,
    neighbor_weights: SrcWeights | None = None,
    reset: bool = False,
    clone: bool = False,
    require_mutex: bool = False,
    *,
    timeout_s: float | None = None,
) -> torch.Tensor:
    """Combine the own value with the values that in-neighbors have left.

    ``x <- self_weight * x + sum_j neighbor_weights[j] * v_j``, where ``v_j`` is the
    last complete value of neighbor ``j``. The terms are added in ascending order of
    rank. This rank waits for no other rank, except for a mutex with ``require_mutex``.
    If associated p is turned on, p is combined in the same way.

    In a job that survives losses, the last value of a lost neighbor counts once; from
    then on the own value takes its weight, or with ``reset`` the value is zero.

    Args:
        name: Name of the window.
        self_weight: Weight of the own value; required with ``neighbor_weights``.
        neighbor_weights: Weight of each in-neighbor; other in-neighbors are ignored.
            Default: all in-neighbors with the topology's weights.
        reset: Set the values of these neighbors, and their p, to zero afterwards.
        clone: Return a new tensor, and do not change the own value and its p.
        require_mutex: Hold this rank's mutex during the update.
        timeout_s: Seconds to wait for the mutex. Default: the configured deadline.

    Returns:
        The tensor given to ``win_create``, with the new value; a new tensor with
        ``clone``.

    Raises:
        KeyError: No window has that name.
        ValueError: Only one of ``self_weight`` and ``neighbor_weights`` is given, a
            rank is not an in-neighbor, a weight is not a finite number, or the window
            holds integers and a weight is neither 1 nor 0.
        CommunicationTimeout: The mutex was not released in time; the text names its
            holder.
    """
    window = find("win_update", name)
    if (self_weight is None) != (neighbor_weights is None):
        raise ValueError(
            f"win_update {name!r}: self_weight and neighbor_weights must be given "
            f"together, got self_weight={self_weight}, "
            f"neighbor_weights={neighbor_weights}"
        )
    neighbors = window.neighbors
    if self_weight is None:
        self_weight = neighbors.own_weight
    own_weight = neighbors.self_weight("win_update", self_weight)
    weights = neighbors.weights(
        "win_update", "neighbor_weights", neighbor_weights, neighbors.in_weights
    )
    mutex = _held(window, require_mutex, "win_update", timeout_s)
    return _update(window, own_weight, weights, reset, clone, mutex)


def win_update_then_collect(
    name: str, require_mutex: bool = True, *, timeout_s: float | None = None
) -> torch.Tensor:
    """Add the values that in-neighbors have left to the own value, and zero them.

    ``x <- x + sum_j v_j``, then ``v_j <- 0``: ``win_update`` with all weights 1 and
    ``reset``. Each value that a neighbor accumulates is collected once.

    Args:
        name: Name of the window.
        require_mutex: Hold this rank's mutex during the update.
        timeout_s: Seconds to wait for the mutex. Default: the configured deadline.

    Returns:
        The tensor given to ``win_create``, with the new value.

    Raises:
        KeyError: No window has that name.
        CommunicationTimeout: The mutex was not released in time; the text names its
            holder.
    """
    window = find("win_update_then_collect", name)
    weights = [(rank, 1.0) for rank in window.neighbors.collected]
    mutex = _held(window, require_mutex, "win_update_then_collect", timeout_s)
    return _update(window, 1.0, weights, True, False, mutex)


def get_win_version(name: str) -> dict[int, int]:
    """Return how often each in-neighbor's value was replaced since the last update.

    These are the puts of the neighbor and the gets of this rank since ``win_update``
    has combined the value.

    Raises:
        KeyError: No window has that name.
    """
    return find("get_win_version", name).native.versions()


def _held(
    window: LiveWindow, require_mutex: bool, operation: str, timeout_s: float | None
) -> contextlib.AbstractContextManager[None]:
    """Return a context that holds this rank's mutex if ``require_mutex`` is set."""
    window.timeout_s(operation, timeout_s)  # checks the type and value
    if not require_mutex:
        return contextlib.nullcontext()
    return win_mutex(window.name, for_self=True, timeout_s=timeout_s)


def _update(
    window: LiveWindow,
    self_weight: float,
    weights: list[tuple[int, float]],
    reset: bool,
    clone: bool,
    mutex: contextlib.AbstractContextManager[None],
) -> torch.Tensor:
    own = window.as_value(window.tensor, "win_update")
    if window.device is not None:
        target = torch.empty_like(own) if clone else window.tensor
        with mutex, torch.no_grad():
            window.device.update(
                own,
                target,
                self_weight,
                weights,
                resets=reset,
                with_p=window.carries_p,
                keeps=not clone,
                operation="win_update",
                limit_s=window.timeout_s("win_update", None),
            )
        return target
    result = window.empty_value() if clone else own
    with mutex:
        window.native.update(
            result.data_ptr(),
            own.data_ptr(),
            self_weight,
            weights,
            reset,
            window.carries_p,
            not clone,
        )
    if clone:
        return window.as_result(result)
    window.write(result)
    return window.tensor
