"""The processes that the ranks of an agent have started, directly or not.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from bfrun.agent.procs import all_processes, descendants, kill_descendants, send_signal

_KILL_LIMIT_S = 1.5


class Family:
    """Finds and ends the descendants of the guard, except the agent itself.

    Orphans of ranks become children of the guard. If it has been killed, the agent is
    the only ancestor that is left.

    Args:
        guard_pid: Process id of the guard, the agent's parent.
    """

    def __init__(self, guard_pid: int) -> None:
        self._guard_pid = guard_pid

    def alive(self) -> set[int]:
        """Return the processes that run."""
        return descendants(self._root(), all_processes()) - {os.getpid()}

    def signal(self, number: int) -> None:
        """Send a signal to all of them."""
        send_signal(self.alive(), number)

    def signal_below(self, pids: Iterable[int], number: int) -> None:
        """Send a signal to some processes and their descendants."""
        processes = all_processes()
        for pid in pids:
            send_signal({pid, *descendants(pid, processes)}, number)

    def kill(self) -> set[int]:
        """Kill all of them and return those that still run."""
        return kill_descendants(self._root(), {os.getpid()}, _KILL_LIMIT_S)

    def wake_guard(self) -> None:
        """Continue the guard, since a stopped one would outlive the job."""
        if os.getppid() == self._guard_pid:
            os.kill(self._guard_pid, signal.SIGCONT)

    def _root(self) -> int:
        guarded = os.getppid() == self._guard_pid
        return self._guard_pid if guarded else os.getpid()
