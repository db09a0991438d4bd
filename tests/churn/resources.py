"""Descriptors and memory of a job's processes, and things that a job leaves behind."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.churn.job import ChurnJob
from tests.support.cluster import Cluster

_SOCKET = re.compile(r" (/\S*/bfrun-\S*)$", re.MULTILINE)


class Held(NamedTuple):
    """Resources of one process.

    Attributes:
        descriptors: Number of open descriptors.
        rss_kib: Resident memory in KiB.
    """

    descriptors: int
    rss_kib: int


def long_lived(job: ChurnJob) -> dict[str, int]:
    """Return the processes that have lived since the start, by what they are."""
    found = {"driver": job.job.process.pid}
    for host in job.cluster.hosts:
        programs = {
            pid: text
            for pid, text in host.processes().items()
            if "bfrun" in text and "tests.churn" not in text
        }
        for number, pid in enumerate(sorted(programs), start=1):
            found[f"bfrun on {host.name}, process {number}"] = pid
    lives = job.logs.lives()
    for rank, life in job.logs.latest().items():
        if sum(one.rank == rank for one in lives) == 1:
            found[f"rank {rank}"] = life.pid
    return found


def held(pids: Mapping[str, int]) -> dict[str, Held]:
    """Return what processes hold; those that have ended are missing."""
    found = {}
    for name, pid in pids.items():
        with contextlib.suppress(OSError):
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
            status = Path(f"/proc/{pid}/status").read_text()
            rss = re.search(r"^VmRSS:\s*(\d+) kB", status, re.MULTILINE)
            if rss is not None:
                found[name] = Held(descriptors, int(rss[1]))
    return found


def folders_of_sockets(cluster: Cluster) -> set[Path]:
    """Return the folders in which agents and ranks have their sockets."""
    found = set()
    for host in cluster.hosts:
        for path in _SOCKET.findall(host.run("cat", "/proc/net/unix")):
            found.add(Path(path).parent)
    return found


def shared_memory(cluster: Cluster) -> list[str]:
    """Return the files of shared memory on all hosts."""
    return [
        f"{host.name}: {name}"
        for host in cluster.hosts
        for name in host.run("ls", "/dev/shm").split()
    ]
