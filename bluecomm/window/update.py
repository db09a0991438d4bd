"""Combining what neighbors have left with the own value."""

from __future__ import annotations

import contextlib

import torch

from bluecomm.ops.neighbor_weights import SrcWeights
from bluecomm.window.live import LiveWindow, find
from bluecomm.window.mutex import win_mutex


def win_update(
    name: str,
    self_weight: float | None = None,
    neighbor_weights: SrcWeights | None = None,
    reset: bool = False,
    clone: bool = False,
    require_mutex: bool = False,
) -> torch.Tensor:
    """Combine the own value with what in-neighbors have left.

    ``x <- self_weight * x + sum_j neighbor_weights[j] * v_j``, where ``v_j`` is what
    neighbor ``j`` has left last, as a whole. The terms are added in ascending order of
    rank. This rank waits for nobody (but for a mutex, if it is to take one). With
    associated p on, p is combined in the same way.

    Args:
        name: Name of the window.
        self_weight: Weight of the own value; goes with ``neighbor_weights``.
        neighbor_weights: In-neighbor to weight; those left out are not looked at.
            Default: the topology's, all in-neighbors.
        reset: Make the values of these neighbors, and their p, zero afterwards.
        clone: Leave the own value (and its p) as it is, and return a new tensor.
        require_mutex: Take this rank's mutex meanwhile.

    Returns:
        The tensor given to ``win_create``, which has the new value; a new one with
        ``clone``.

    Raises:
        KeyError: There is no window of that name.
        ValueError: Only one of ``self_weight`` and ``neighbor_weights`` is given, a
            rank that is no in-neighbor, a weight that is no finite number, or weights
            other than 1 and 0 for integers.
    """
    window = find("win_update", name)
    if (self_weight is None) != (neighbor_weights is None):
        raise ValueError(
            f"win_update {name!r}: self_weight and neighbor_weights have to be given "
            f"together, got self_weight={self_weight}, "
            f"neighbor_weights={neighbor_weights}"
        )
    if self_weight is None:
        topology = window.comm.topology
        self_weight = topology.weights.self_weight if topology else 1.0
    own_weight = window.self_weight("win_update", self_weight)
    weights = window.weights(
        "win_update", "neighbor_weights", neighbor_weights, window.in_weights
    )
    return _update(window, own_weight, weights, reset, clone, require_mutex)


def win_update_then_collect(name: str, require_mutex: bool = True) -> torch.Tensor:
    """Add what in-neighbors have left to the own value, and leave zeros in its place.

    ``x <- x + sum_j v_j``, then ``v_j <- 0``: ``win_update`` with all weights 1 and
    ``reset``. Each thing that a neighbor accumulates is collected once.

    Args:
        name: Name of the window.
        require_mutex: Take this rank's mutex meanwhile.

    Returns:
        The tensor given to ``win_create``, which has the new value.

    Raises:
        KeyError: There is no window of that name.
    """
    window = find("win_update_then_collect", name)
    weights = sorted(dict.fromkeys(window.in_weights, 1.0).items())
    return _update(window, 1.0, weights, True, False, require_mutex)


def get_win_version(name: str) -> dict[int, int]:
    """Return how often each in-neighbor's value was replaced since the last update.

    That is, its puts, and this rank's gets, since ``win_update`` combined it.

    Raises:
        KeyError: There is no window of that name.
    """
    return find("get_win_version", name).native.versions()


def _update(
    window: LiveWindow,
    self_weight: float,
    weights: list[tuple[int, float]],
    reset: bool,
    clone: bool,
    require_mutex: bool,
) -> torch.Tensor:
    own = window.as_value(window.tensor, "win_update")
    result = torch.empty_like(own) if clone else own
    with contextlib.ExitStack() as stack:
        if require_mutex:
            stack.enter_context(win_mutex(window.name, for_self=True))
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
        return result
    window.write(result)
    return window.tensor
