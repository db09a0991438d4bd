"""The facts about its machine that an agent tells the driver.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import time

from bfrun.agent.kernel import machine_id
from bfrun.agent.limits import host_limits
from bfrun.agent.ports import free_port
from bfrun.frames.agent_to_driver import ClockReading, Ready


def ready_frame(guard_pid: int, folder: str) -> Ready:
    """Return the first frame of the agent, whose sockets are in ``folder``."""
    return Ready(
        agent_pid=os.getpid(),
        guard_pid=guard_pid,
        folder=folder,
        hostname=socket.gethostname(),
        python=platform.python_version(),
        executable=sys.executable,
        free_port=free_port(),
        limits=host_limits(),
        machine_id=machine_id(),
    )


def clock_reading(sent_ns: int) -> ClockReading:
    """Return the time on this machine's clock, to be sent at once.

    Args:
        sent_ns: When the driver asked, on its clock.
    """
    received_ns = time.monotonic_ns()
    return ClockReading(
        sent_ns=sent_ns, received_ns=received_ns, replied_ns=time.monotonic_ns()
    )
