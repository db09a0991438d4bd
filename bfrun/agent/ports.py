"""Chooses a port for the users' own rendezvous. Part of the agent: Python 3.8."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Return a TCP port that is free now and outside the ephemeral range.

    No outgoing connection can take such a port before the user's script listens.

    Raises:
        OSError: No port could be bound.
    """
    low, high = ephemeral_range()
    candidates = [*range(max(1024, min(20000, low)), low), *range(high + 1, 65536)]
    for port in [*random.sample(candidates, min(64, len(candidates))), 0]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("this host has no free TCP port for MASTER_PORT")


def ephemeral_range() -> tuple[int, int]:
    """Return the first and last port that the kernel gives to outgoing connections."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = (int(word) for word in file.read().split())
    except (OSError, ValueError):
        return 32768, 60999
    return low, high
