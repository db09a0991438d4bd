"""How long an operation waits for ranks that live but do not take part."""

from __future__ import annotations


class Patience:
    """The lengths of time that follow from the configured deadline of operations.

    A deadline that comes near is put off while the awaited ranks use their processors:
    one that evaluates, downloads or compiles must not end the job. For the default of
    600 s, the monitor asks from 585 s on, every 5 s, who has been busy within the last
    30 s, and then grants 60 s more. Shorter deadlines shorten all of these.

    Args:
        limit_s: The configured deadline.
    """

    def __init__(self, limit_s: float) -> None:
        self.near_after_s = limit_s - min(15.0, limit_s / 2)
        self.ask_every_s = min(5.0, limit_s / 8)
        self.busy_within_s = min(30.0, limit_s / 2)
        self.extension_s = min(60.0, limit_s / 2)

    def is_near(self, age_s: float) -> bool:
        """Return whether the deadline of an operation is near, or was put off."""
        return age_s >= self.near_after_s
