"""Decides when a host that could not take part in the job is tried again. No I/O.

The wait doubles with each failure. A host that the discovery script no longer names is
forgotten, so it is tried at once when it is named again. A check that is still under
way for a forgotten host may fail later; that failure is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bfrun.hosts import Host

FIRST_WAIT_S = 10.0
LONGEST_WAIT_S = 300.0
# An agent that is lost sooner after its start has failed like one that did not start.
_LONG_LIFE_S = 300.0


@dataclass
class _Trouble:
    due: float
    next_wait_s: float
    told: str
    arrived_at: float | None = None


class HostRetries:
    """The hosts that have failed, and when each is tried again."""

    def __init__(self) -> None:
        self._of: dict[Host, _Trouble] = {}
        # The hosts that the job may use; None until the script has named some.
        self._named: set[Host] | None = None

    def is_due(self, host: Host, now: float) -> bool:
        """Return whether a host may be tried now."""
        trouble = self._of.get(_key(host))
        return trouble is None or now >= trouble.due

    def failed(self, host: Host, why: str, now: float) -> float | None:
        """Note that a host could not take part.

        Args:
            host: The host.
            why: The reason, for the user.
            now: Seconds on any clock.

        Returns:
            The seconds until it is tried again, if the user does not know the reason
            yet, otherwise None. None, too, if the job may no longer use the host.
        """
        if self._named is not None and _key(host) not in self._named:
            return None
        trouble = self._of.setdefault(_key(host), _Trouble(now, FIRST_WAIT_S, ""))
        lived_at = trouble.arrived_at
        if lived_at is not None and now - lived_at >= _LONG_LIFE_S:
            trouble.next_wait_s = FIRST_WAIT_S
        trouble.arrived_at = None
        wait_s = trouble.next_wait_s
        trouble.due = now + wait_s
        trouble.next_wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        is_known = trouble.told == why
        trouble.told = why
        return None if is_known else wait_s

    def arrived(self, host: Host, now: float) -> None:
        """Note that a host takes part now."""
        trouble = self._of.get(_key(host))
        if trouble is not None:
            trouble.arrived_at, trouble.told = now, ""

    def keep(self, named: Iterable[Host]) -> None:
        """Forget all hosts but these."""
        keys = self._named = {_key(host) for host in named}
        self._of = {key: each for key, each in self._of.items() if key in keys}


def _key(host: Host) -> Host:
    """Return what names a host, whatever its slots are."""
    return Host(host.name, None, host.user)
