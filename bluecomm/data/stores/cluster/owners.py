"""Assigns keys to machines by rendezvous hashing."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from bluecomm.data.permutation import mix


def owner_of(key: int, machines: Iterable[int]) -> int:
    """Return the machine that keeps the value of a key.

    Keys are spread evenly. Without one of the machines, only its keys have other
    owners.

    Args:
        key: The key, at least 0.
        machines: Numbers of the machines that are left, at least one.
    """
    return max(machines, key=lambda machine: mix(key ^ _salt(machine)))


@functools.cache
def _salt(machine: int) -> int:
    return mix(machine)
