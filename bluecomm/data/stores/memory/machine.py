"""The machine of a process, within which others can open its descriptors."""

from __future__ import annotations

import os
from pathlib import Path

MachineId = tuple[str, int, int]


def machine_id() -> MachineId:
    """Return the boot of this machine, the name space of processes, and the user.

    Containers of one machine have their own process numbers, so they do not share.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return boot, os.stat("/proc/self/ns/pid").st_ino, os.geteuid()
