"""The id of this process, known without a system call."""

from __future__ import annotations

import os

# Read it as `fork.pid`, because it changes in a forked child.
pid = os.getpid()


def _enter_child() -> None:
    global pid
    pid = os.getpid()


os.register_at_fork(after_in_child=_enter_child)
