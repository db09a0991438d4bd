"""The processes of a job that are left at its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bfrun.driver.agent_session import AgentSession
from bfrun.wording import count

# Seconds in which the guard of a lost agent ends all processes.
GUARD_LIMIT_S = 6.0
# Seconds in which a guard exits after its agent has ended all ranks. It does so at
# once, unless the machine is very busy.
_EXIT_LIMIT_S = 30.0


@dataclass(frozen=True)
class Leftovers:
    """The processes of a job that still run at its end, as its agents count them.

    Attributes:
        hosts: Number of hosts of the job.
        left: Number of processes that could not be ended, by host name.
        silent: Hosts that cannot be reached.
        limit_s: Seconds within which the processes on these hosts end.
    """

    hosts: int
    left: Mapping[str, int]
    silent: Sequence[str] = ()
    limit_s: float = 6.0

    def __str__(self) -> str:
        if not self.hosts:
            return "no host reported whether processes are left"
        total = sum(self.left.values())
        asked = self.hosts - len(self.silent)
        text = f"{count(total, 'process', 'processes')} left on {count(asked, 'host')}"
        bad = [f"{host}: {left}" for host, left in self.left.items() if left]
        if bad:
            text += f" ({', '.join(bad)})"
        if self.silent:
            text += (
                f"; {', '.join(self.silent)} cannot be reached, the guard there ends "
                f"its processes within {self.limit_s:g} s"
            )
        return text


def await_guards(
    sessions: Sequence[AgentSession], counted: Mapping[str, int], limit_s: float
) -> Leftovers:
    """Wait for the guards, which end after all processes below them.

    Args:
        sessions: The sessions of all agents that the job has had.
        counted: Number of processes that agents could not end, by host name.
        limit_s: Seconds within which guards that cannot be reached end theirs.
    """
    left = dict(counted)
    silent = []
    # A host has had several agents if it was lost and came back.
    newest = {(each.host.user, each.host.name): each for each in sessions}
    lost_until = time.monotonic() + GUARD_LIMIT_S
    ended_until = time.monotonic() + _EXIT_LIMIT_S
    for session in sessions:
        # A silent host cannot report the end of its guard, so do not wait for it.
        until = ended_until if session.ended else lost_until
        left_s = 0.0 if session.silent else until - time.monotonic()
        is_gone = session.connection.wait(max(0.0, left_s)) is not None
        name = session.host.name
        if is_gone:
            left.setdefault(name, 0)
        elif session.ended:
            left[name] += 1
        elif session in newest.values():
            silent.append(name)
    return Leftovers(len(newest), left, silent, limit_s)
