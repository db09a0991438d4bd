"""How many cores a rank has for itself, and its data loader."""

from __future__ import annotations

import os
import socket
from collections import Counter
from pathlib import Path

from bluecomm.data.world import DataWorld

# More workers than that rarely load faster, and each takes memory.
_MOST_WORKERS = 8
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def worker_count(world: DataWorld) -> int:
    """Return how many workers suit this rank's share of the cores; collective.

    Ranks of a machine share the cores on which they may run, and one core of the share
    is left to the training. A limit of the container's CPU time counts, too.
    """
    mine = (_machine(), sorted(os.sched_getaffinity(0)), _quota(_QUOTA))
    everyone = world.gather(mine, "DataLoader.cores")
    spare = int(share_of(everyone, world.part[0])) - 1
    return max(min(spare, _MOST_WORKERS), 0)


def share_of(ranks: list[tuple[str, list[int], float]], rank: int) -> float:
    """Return the cores that a rank has if each core is divided among its ranks.

    Args:
        ranks: Machine, cores and CPUs of the container for each rank.
        rank: The rank.
    """
    machine, cores, quota = ranks[rank]
    neighbors = [each for each in ranks if each[0] == machine]
    users = Counter(core for each in neighbors for core in each[1])
    share = sum(1 / users[core] for core in cores)
    return min(share, quota / len(neighbors))


def _machine() -> str:
    """Return a text that tells machines, and containers of a machine, apart."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def _quota(path: Path) -> float:
    """Return the CPUs that the cgroup of the container may use; infinite without."""
    try:
        limit, period = path.read_text().split()
        return float(limit) / float(period)
    except (OSError, ValueError):
        return float("inf")
