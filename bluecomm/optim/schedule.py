"""Decides which steps have a round."""

from __future__ import annotations


class Schedule:
    """Counts forward passes and steps since the last round.

    A step has a round if ``every`` training forward passes or ``every`` steps, itself
    included, have passed: accumulation (F F F S) or local steps (FS FS FS).

    Args:
        every: ``num_steps_per_communication``.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._forwards = 0
        self._steps = 0
        self.round = 0

    @property
    def is_due(self) -> bool:
        """Whether the next step, or the step under way, has a round."""
        return self._forwards >= self._every or self._steps + 1 >= self._every

    def on_forward(self) -> None:
        """Count a training forward pass."""
        self._forwards += 1

    def on_step(self) -> None:
        """Count a finished step; ``round`` is the number of the next round."""
        if self.is_due:
            self.on_round()
        else:
            self._steps += 1

    def on_round(self) -> None:
        """Count a round."""
        self._forwards = self._steps = 0
        self.round += 1

    def state_dict(self) -> dict[str, int]:
        """Return the counts."""
        return {
            "round": self.round,
            "steps": self._steps,
            "forwards": self._forwards,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from counts that ``state_dict`` returned."""
        self.round = state["round"]
        self._steps = state["steps"]
        self._forwards = state["forwards"]
