"""How long an operation waits for ranks that are alive but do not take part."""

from __future__ import annotations


class DeadlinePolicy:
    """Derives the monitor's time limits from the configured deadline of operations.

    A deadline that comes near is extended while the awaited ranks use their processors,
    because a rank that evaluates, downloads or compiles must not end the job. With the
    default deadline of 600 s, the monitor asks every 5 s, from 585 s on, which ranks
    have been busy within the last 30 s, and then extends the deadline by 60 s. A
    shorter deadline shortens all of these.

    Args:
        limit_s: The configured deadline.
    """

    def __init__(self, limit_s: float) -> None:
        self.near_after_s = limit_s - min(15.0, limit_s / 2)
        self.ask_every_s = min(5.0, limit_s / 8)
        self.busy_within_s = min(30.0, limit_s / 2)
        self.extension_s = min(60.0, limit_s / 2)

    def is_near(self, age_s: float) -> bool:
        """Return whether the deadline of an operation is near, or was extended."""
        return age_s >= self.near_after_s
