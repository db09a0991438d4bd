"""The guard: parent of the agent, which makes sure that no process is left behind.

Launchers start the guard. It makes itself a subreaper, forks the agent, and keeps only
a pipe from it. Every process that the agent starts stays a descendant of the guard,
even if its own parent dies or it starts a session. If the agent ends, or gives no sign
of life for 5 s, the guard kills its descendants. It finds them by their parents
in /proc, so no list of process ids can go stale. If the guard itself is killed, the
kernel signals the agent, which ends the job.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from typing import Any

from bfrun.agent import agent, kernel
from bfrun.agent.driver_connection import PAUSED_BEAT
from bfrun.agent.procs import kill_descendants
from bfrun.agent.signals import IGNORED
from bfrun.private_folder import PrivateFolder
from bfrun.silence import SilenceTimer

SILENCE_LIMIT_S = 5.0
_LOOK_S = 0.25
_AGENT_EXIT_S = 0.3
_KILL_LIMIT_S = 5.0


def main(marker: bytes) -> None:
    """Become the guard of a new agent. Does not return.

    Args:
        marker: Bytes that the agent writes before its first frame, so that the driver
            can skip the output of a login shell.
    """
    # setsid fails if this process leads a session already, which is as good.
    with contextlib.suppress(PermissionError):
        os.setsid()
    kernel.become_subreaper()
    kernel.set_name("bfrun-guard")
    folder = _make_folder()
    read_fd, write_fd = os.pipe()
    guard_pid = os.getpid()
    agent_pid = os.fork()
    if agent_pid == 0:
        os.close(read_fd)
        os._exit(_run_agent(marker, folder.path, write_fd, guard_pid))
    # Only the agent may hold the descriptors, so that the driver sees them close.
    os.close(write_fd)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os._exit(Guard(agent_pid, read_fd, folder).run())


def _make_folder() -> PrivateFolder:
    """Make the folder of the job, for sockets and traces."""
    try:
        return PrivateFolder("bfrun-job-")
    except OSError as error:
        sys.exit(
            f"bfrun's agent cannot make a folder for its sockets: {error}; free "
            "space on this host, or set TMPDIR to another folder"
        )


def _run_agent(marker: bytes, folder: str, beat_fd: int, guard_pid: int) -> int:
    try:
        kernel.set_parent_death_signal(signal.SIGTERM)
        kernel.set_name("bfrun-agent")
        return agent.main(marker, folder, beat_fd, guard_pid)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 70


class Guard:
    """Watches one agent, and kills the processes that it leaves."""

    def __init__(self, agent_pid: int, beat_fd: int, folder: PrivateFolder) -> None:
        self._agent_pid = agent_pid
        self._beat_fd = beat_fd
        self._folder = folder
        self._agent_status: int | None = None
        self._silence = SilenceTimer(SILENCE_LIMIT_S)

    def run(self) -> int:
        """Watch until the agent ends or is silent, clean up, return an exit code."""
        signal.signal(signal.SIGTERM, self._pass_on)
        for ignored in IGNORED:
            signal.signal(ignored, signal.SIG_IGN)
        while self._agent_lives() and not self._silence.expired():
            self._reap()
        deadline = time.monotonic() + _AGENT_EXIT_S
        while self._agent_status is None and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.01)
        kill_descendants(os.getpid(), set(), _KILL_LIMIT_S)
        self._reap()
        self._folder.close()
        return 1 if self._agent_status is None else self._agent_status

    def _pass_on(self, signum: int, frame: Any) -> None:
        if self._agent_status is None:
            os.kill(self._agent_pid, signum)

    def _agent_lives(self) -> bool:
        """Wait a moment for beats, and return whether the pipe is still open."""
        ready, _, _ = select.select([self._beat_fd], [], [], _LOOK_S)
        if ready:
            data = os.read(self._beat_fd, 4096)
            if not data:
                return False
            self._silence.pause(data.endswith(PAUSED_BEAT))
        return True

    def _reap(self) -> None:
        """Collect the exit status of the agent and of orphans."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._agent_pid:
                    killed = os.WIFSIGNALED(status)
                    self._agent_status = (
                        128 + os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
                    )
        except ChildProcessError:
            pass
