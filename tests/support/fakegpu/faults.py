"""Faults of the fake's device and NCCL on one rank, and the end of ranks."""

from __future__ import annotations

import os
from pathlib import Path

from bluecomm.runtime import current_communicator
from tests.support.deadlines import wait_until
from tests.support.fakegpu.library import load


def set_fake(**variables: str) -> None:
    """Change settings of the fake on this rank, which counts its calls anew."""
    os.environ.update({f"FAKEGPU_{name}": value for name, value in variables.items()})
    load().reset()


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def await_end(pid: int) -> None:
    """Wait until a process has ended, or is a zombie."""
    wait_until(lambda: has_ended(pid), f"process {pid} goes on")


def report_killed(rank: int) -> None:
    """Wait until a rank has been killed, and report the loss as bfrun does."""
    world = current_communicator().world
    await_end(world.peers[rank].pid)
    world.engine.peer_lost(rank, f"rank {rank} was killed")
