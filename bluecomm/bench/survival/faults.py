"""The failures that ``survive`` causes, and how long the other ranks may pause."""

from __future__ import annotations

import dataclasses
from typing import Literal

Action = Literal[
    "none", "kill", "stop", "pause", "late", "load", "detach", "cut", "loss"
]


@dataclasses.dataclass(frozen=True)
class Fault:
    """A failure of some ranks of a job.

    Attributes:
        name: Its name on the command line.
        title: Its name in tables and plots.
        action: How it is caused. The caller of ``run_job`` causes ``cut`` and ``loss``,
            which need hosts whose links can be cut or lose packets. ``stop`` is SIGSTOP
            for good, ``pause`` SIGSTOP for ``seconds``, ``late`` a step that takes
            ``seconds`` longer, ``load`` busy processes, four per core, ``detach`` kills
            bfrun and attaches another one after ``seconds``.
        ranks: Number of ranks of the job.
        victims: The ranks that it hits.
        seconds: How long a pause, a late step or the time without bfrun lasts.
        limit_ms: Limit of the longest gap between two steps of any survivor, in
            milliseconds beyond the step itself; ``None`` if there is none.
    """

    name: str
    title: str
    action: Action
    ranks: int = 4
    victims: tuple[int, ...] = ()
    seconds: float = 0.0
    limit_ms: float | None = None

    @property
    def ends_victims(self) -> bool:
        """Whether the victims never return."""
        return self.action in ("kill", "stop")

    @property
    def spares_all(self) -> bool:
        """Whether its victims are only slow, so that no rank may be excluded."""
        return self.action in ("none", "late", "load", "detach", "loss") or (
            self.action == "pause" and self.seconds < _STOPPED_S
        )


# The other ranks may exclude a rank that is stopped for longer than this.
_STOPPED_S = 0.3

NONE = Fault("none", "nothing fails", "none")
FAULTS = (
    Fault("kill", "kill -9 of one of 4", "kill", 4, (2,), limit_ms=250),
    Fault("kill-rank-0", "kill -9 of rank 0", "kill", 4, (0,), limit_ms=250),
    Fault("kill-half", "kill -9 of half of 8", "kill", 8, (1, 2, 4, 7), limit_ms=250),
    Fault("stop", "SIGSTOP of one of 4", "stop", 4, (2,), limit_ms=1000),
    Fault("pause", "SIGSTOP for 2 s", "pause", 4, (2,), 2.0, limit_ms=1000),
    Fault("short-pause", "SIGSTOP for 0.2 s", "pause", 4, (2,), 0.2, limit_ms=1000),
    Fault("late", "one step takes 2 s more", "late", 4, (2,), 2.0),
    Fault("load", "load of 4 times the cores", "load"),
    # No gap: less than one step.
    Fault("detach", "bfrun killed, attached again", "detach", limit_ms=50),
)
# With two ranks on each host. If one is cut off, the others are the primary side.
ON_HOSTS = (
    Fault("cut", "one of 2 hosts cut off", "cut", 4, (2, 3), limit_ms=1000),
    Fault("cut-of-3", "one of 3 hosts cut off", "cut", 6, (4, 5), limit_ms=1000),
    Fault("loss", "5 % of packets lost between 2 hosts", "loss", 4),
)
BY_NAME = {fault.name: fault for fault in (NONE, *FAULTS, *ON_HOSTS)}
