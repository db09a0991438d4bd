"""``join``, for ranks that run out of data before others."""

from __future__ import annotations

from bluecomm.optim.ownership import live_owners

__all__ = ["join"]


def join() -> int:
    """Take part without data until all ranks have joined, with every optimizer.

    Collective. Calls ``join`` of each distributed optimizer of this process, in the
    order in which they were made.

    Returns:
        The last rank to join, for the optimizer that was made last.

    Raises:
        ValueError: There is no distributed optimizer, or one does not support ``join``.
    """
    owners = live_owners()
    if not owners:
        raise ValueError(
            "join: there is no DistributedOptimizer in this process. Without one, call "
            "the same operations on all ranks"
        )
    return [owner.join() for owner in owners][-1]
