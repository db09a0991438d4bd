"""Refuses ranks that the hosts cannot hold, before any of them starts."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence

from bfrun.config import LaunchConfig
from bfrun.driver.agent_session import AgentSession
from bfrun.env import Placement
from bfrun.errors import LaunchError
from bfrun.plan import HostPlan, LaunchPlan, plan_process
from bfrun.wording import count

# Descriptors of the driver besides those of the logs.
_OWN_FILES = 128


def check_capacity(plan: LaunchPlan, sessions: Sequence[AgentSession]) -> None:
    """Raise unless the limits of each host allow its ranks.

    Args:
        plan: The ranks of each host.
        sessions: Agents in the order of the hosts, all ready.

    Raises:
        LaunchError: Some limits are too low. The text has each with its values.
    """
    problems = []
    for host, session in zip(plan.hosts, sessions, strict=True):
        assert session.ready is not None
        ranks = max(len(host.processes), host.slots)
        for limit in session.ready.limits:
            needed = limit.used + ranks * limit.per_rank
            if needed > limit.limit:
                problems.append(
                    f"host '{host.host.name}': starting {count(ranks, 'rank')} takes "
                    f"{ranks * limit.per_rank} more {limit.what}, but {limit.name} is "
                    f"{limit.limit}, of which {limit.used} are in use; raise it, or "
                    "start fewer ranks there"
                )
    if problems:
        raise LaunchError("\n".join(problems))


def check_slots(config: LaunchConfig, host: HostPlan) -> None:
    """Raise unless a host has the GPUs and the cores for all of its slots.

    Raises:
        LaunchError: It has too few. The text says how many it has, and what to do.
    """
    last = host.slots - 1
    placement = Placement(
        rank=last,
        world_size=host.slots,
        local_rank=last,
        local_world_size=host.slots,
        machine_rank=0,
        machine_world_size=1,
    )
    plan_process(config, host, last, placement, os.environ)


def make_room_for_logs(ranks: int) -> None:
    """Raise this process's own limit on open files for two logs of each rank.

    Raises:
        LaunchError: The system does not allow so many open files.
    """
    needed = 2 * ranks + _OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed > hard:
        raise LaunchError(
            f"--output-dir: writing logs of {count(ranks, 'rank')} takes {needed} open "
            f"files in bfrun, but RLIMIT_NOFILE (ulimit -Hn) is {hard}; raise it, or "
            "leave --output-dir out"
        )
    if needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
