"""The scalar p that push-sum sends along with the values of a window."""

from __future__ import annotations

from bluecomm.runtime import current_communicator
from bluecomm.window.live import find

__all__ = [
    "turn_off_win_ops_with_associated_p",
    "turn_on_win_ops_with_associated_p",
    "win_associated_p",
]


def turn_on_win_ops_with_associated_p() -> None:
    """Let puts, accumulates, gets and updates treat p as they treat the values.

    Each window has a p at each rank, which is 1 at first. A put sends
    ``dst_weights[j] * p`` along and multiplies p by ``self_weight``; an update combines
    them with its weights. Push-sum divides the values by p, so its weights need only be
    column-stochastic.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    current_communicator().win_ops_carry_p = True


def turn_off_win_ops_with_associated_p() -> None:
    """Stop changing p from now on.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    current_communicator().win_ops_carry_p = False


def win_associated_p(name: str) -> float:
    """Return the p of this rank's own value.

    Raises:
        KeyError: No window has that name.
    """
    return find("win_associated_p", name).native.p
