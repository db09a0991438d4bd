"""The prctl calls that Python does not have, and which kernel runs.

Part of the agent: Python 3.8.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

# Loaded at import, because a child must not load it between fork and exec.
_libc = ctypes.CDLL(None, use_errno=True)


def set_parent_death_signal(signum: int) -> None:
    """Have the kernel signal this process when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signum))


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def set_name(name: str) -> None:
    """Set the name of this process in ``ps`` and ``top``, at most 15 characters."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode("ascii")))


def machine_id() -> str:
    """Return a text that names the running kernel and this PID namespace.

    Processes with the same text see each other in /proc. A machine has another one
    after it was started again. Returns "" where /proc does not tell.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _prctl(option: int, argument: Any) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {argument}): {os.strerror(number)}")
