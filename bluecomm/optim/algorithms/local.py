"""No communication: each rank trains alone."""

from __future__ import annotations

from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.registry import register_algorithm


@register_algorithm("local")
class Local(Algorithm):
    """Each rank trains on its own: ``x_i <- step(x_i, g_i(x_i))``.

    This is the baseline for comparisons.
    """

    works_on_devices = True
    survives_losses = True
    trains_apart = True
    admits_newcomers = True
    honours = frozenset({"backward_passes_per_step", "num_steps_per_communication"})

    def obstacle_to_join(self) -> str:
        return ""

    def continue_until_all_join(self) -> int:
        """Return this rank at once, since no rank waits for another."""
        return self.context.comm.world.rank
