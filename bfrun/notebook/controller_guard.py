"""The controller guard: parent of the controller, which ends it with the driver.

The controller starts a process for each of its queues, and these outlive it if it is
killed. They all stay descendants of the guard. The driver holds the guard's standard
input, and when that ends, the guard kills its descendants. If the guard is killed, the
kernel signals the controller.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from bfrun.agent import kernel
from bfrun.agent.procs import kill_descendants

_LOOK_S = 0.25
_KILL_LIMIT_S = 5.0


def main() -> None:
    """Run the command in the arguments until it or the driver ends."""
    driver = os.getppid()
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    kernel.become_subreaper()
    process = subprocess.Popen(
        sys.argv[1:],
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: kernel.set_parent_death_signal(signal.SIGTERM),
    )
    ended = False
    while not ended and process.poll() is None:
        ended = bool(select.select([0], [], [], _LOOK_S)[0])
    kill_descendants(os.getpid(), set(), _KILL_LIMIT_S)
    if not ended and os.getppid() == driver:
        print(
            f"ibfrun: the controller has ended (exit {process.returncode}); ending "
            "the engines",
            file=sys.stderr,
            flush=True,
        )
        os.kill(driver, signal.SIGTERM)
