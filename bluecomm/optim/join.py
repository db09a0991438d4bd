"""``join``: for ranks that run out of data before others."""

from __future__ import annotations

from bluecomm.optim.live import live_coordinators


def join() -> int:
    """Take part without data until all ranks have joined, with every optimizer.

    Collective. Joins the distributed optimizers of this process in the order in which
    they were made; see their ``join`` method.

    Returns:
        The last rank to join, for the optimizer that was made last.

    Raises:
        ValueError: There is no distributed optimizer, or one has no join.
    """
    coordinators = live_coordinators()
    if not coordinators:
        raise ValueError(
            "join: there is no DistributedOptimizer in this process; operations of "
            "your own need the same calls on all ranks"
        )
    return [coordinator.join() for coordinator in coordinators][-1]
