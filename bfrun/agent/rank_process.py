"""The process of one rank: its start, output and exit, and whether it is stopped.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Literal

from bfrun.agent import kernel
from bfrun.agent.procs import read_stat
from bfrun.agent.signals import IGNORED
from bfrun.frames.driver_to_agent import RankCommand

Stream = Literal["stdout", "stderr"]
Event = Literal["frozen", "failed", "thawed"]

# Bytes of output that may be on their way to the driver. A rank that prints faster
# than the terminal shows it blocks on its pipe, as it would on a terminal.
OUTPUT_WINDOW_NBYTES = 256 << 10
READ_NBYTES = 64 << 10

# Seconds after a rank's end at which the agent closes its pipes, because the rank's
# children may keep them open.
OUTPUT_LINGER_S = 0.5


class RankProcess:
    """The process of one rank, in a session of its own. Owns its pipes."""

    def __init__(self, spec: RankCommand) -> None:
        self.rank = spec.rank
        self.spec = spec
        self.popen: subprocess.Popen[bytes] | None = None
        self.stdin_fd: int | None = None
        self.streams: dict[Stream, int] = {}
        self.unacked = 0
        self.status: int | None = None
        self.hello_pid: int | None = None
        self.said_goodbye = False
        self.vanished = False
        self.freeze = FreezeWatch()
        self._exit_time = 0.0

    @property
    def pid(self) -> int:
        """Process id of the started command; 0 if it could not be started."""
        return self.popen.pid if self.popen is not None else 0

    @property
    def watched_pid(self) -> int:
        """The process that speaks for this rank, or the command if none does yet."""
        return self.hello_pid or self.pid

    def start(
        self, environment: Mapping[str, str], file_limit: int | None = None
    ) -> str | None:
        """Start the command.

        Call it from the main thread, because the kernel kills the rank when the thread
        that started it ends.

        Args:
            environment: All variables of the rank.
            file_limit: Soft limit on its open files; None means the agent's.

        Returns:
            None, or a text that says why the command could not be started.
        """
        agent_pid = os.getpid()
        cpus = self.spec.cpus
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

        def prepare() -> None:
            kernel.set_parent_death_signal(signal.SIGKILL)
            if os.getppid() != agent_pid:
                os.kill(os.getpid(), signal.SIGKILL)
            if cpus:
                os.sched_setaffinity(0, cpus)
            for ignored_by_agent in IGNORED:
                signal.signal(ignored_by_agent, signal.SIG_DFL)
            if file_limit is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (file_limit, hard))

        wants_stdin = self.spec.stdin
        try:
            self.popen = subprocess.Popen(
                self.spec.argv,
                cwd=self.spec.cwd,
                env=dict(environment),
                stdin=subprocess.PIPE if wants_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=prepare,
            )
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return self._start_error(error)
        assert self.popen.stdout is not None
        assert self.popen.stderr is not None
        self.streams = {
            "stdout": self.popen.stdout.fileno(),
            "stderr": self.popen.stderr.fileno(),
        }
        for fd in self.streams.values():
            os.set_blocking(fd, False)
        if self.popen.stdin is not None:
            self.stdin_fd = self.popen.stdin.fileno()
            os.set_blocking(self.stdin_fd, False)
        return None

    def _start_error(self, error: Exception) -> str:
        argv, cwd = self.spec.argv, self.spec.cwd
        if not os.path.isdir(cwd):
            return (
                f"working directory '{cwd}' does not exist on this host; "
                "share it between the hosts, or start bfrun in another directory"
            )
        if isinstance(error, FileNotFoundError):
            return (
                f"command '{argv[0]}' was not found on this host "
                f"(working directory {cwd})"
            )
        text = f"command '{argv[0]}' could not be started: {error}"
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.ENOEXEC):
            text += (
                f"; name the interpreter (python {argv[0]}), or make the file "
                "executable with an interpreter in its first line"
            )
        elif isinstance(error, BlockingIOError):
            text += (
                "; this host allows no more processes: raise ulimit -u, the "
                "pids.max of its cgroup or kernel.threads-max"
            )
        return text

    def read(self, stream: Stream) -> bytes | None:
        """Return new output, ``b""`` at its end, or None if there is none now."""
        try:
            data = os.read(self.streams[stream], READ_NBYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        self.unacked += len(data)
        return data

    @property
    def may_read(self) -> bool:
        """Whether the output window has room."""
        return self.unacked < OUTPUT_WINDOW_NBYTES

    def close_stream(self, stream: Stream) -> None:
        """Stop reading one stream."""
        self.streams.pop(stream)
        assert self.popen is not None
        file = self.popen.stdout if stream == "stdout" else self.popen.stderr
        assert file is not None
        file.close()

    def close_stdin(self) -> None:
        """Let the rank read end-of-file from its standard input."""
        if self.popen is not None and self.popen.stdin is not None:
            self.popen.stdin.close()
        self.stdin_fd = None

    def poll_exit(self) -> bool:
        """Return True once, when the process has ended; ``status`` is then set.

        The process stays a zombie, so that no other process gets its id while it may
        still be signalled.
        """
        if self.popen is None or self.status is not None:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        info = os.waitid(os.P_PID, self.pid, flags)
        if info is None:
            return False
        exited = info.si_code == os.CLD_EXITED
        self.status = info.si_status if exited else -info.si_status
        self._exit_time = time.monotonic()
        return True

    def lingered(self) -> bool:
        """Whether the rank ended so long ago that its output is complete."""
        return (
            self.status is not None
            and time.monotonic() - self._exit_time > OUTPUT_LINGER_S
        )

    def reap(self) -> None:
        """Reap the zombie and close every pipe."""
        for stream in tuple(self.streams):
            self.close_stream(stream)
        self.close_stdin()
        if self.popen is not None:
            self.popen.poll()


class FreezeWatch:
    """Measures how long a process has been stopped, and how busy it is."""

    WARN_AFTER_S = 10.0
    # A process that uses less than this in a window (0.5 % of a core) only waits.
    BUSY_CPU_S = 0.05
    WINDOW_S = 10.0

    def __init__(self) -> None:
        self.stopped_s = 0.0
        self.cpu_s = 0.0
        self.idle_s = 0.0
        self.state = "running"
        self._window_s = 0.0
        self._window_cpu_s = 0.0
        self._reported: Event | None = None

    def sample(self, pid: int, step_s: float, limit_s: float) -> Event | None:
        """Read the state of the process. Call it once a second.

        Args:
            pid: The process.
            step_s: Seconds since the last call.
            limit_s: Seconds that a stop may last.

        Returns:
            ``"frozen"`` when a stop has lasted 10 s, ``"failed"`` when it has lasted
            ``limit_s``, ``"thawed"`` when a reported stop has ended, otherwise None.
        """
        stat = read_stat(pid)
        if stat is None:
            self.state = "exited"
            return None
        self._note_cpu(stat.cpu_s, step_s)
        # "t" is a process in a debugger, which is stopped on purpose.
        if stat.state != "T":
            self.state = "exited" if stat.state in "ZX" else "running"
            return self._thaw()
        self.state = "stopped"
        self.stopped_s += step_s
        if self.stopped_s >= limit_s and self._reported != "failed":
            self._reported = "failed"
        elif self.stopped_s >= self.WARN_AFTER_S and not self._reported:
            self._reported = "frozen"
        else:
            return None
        return self._reported

    def _note_cpu(self, cpu_s: float, step_s: float) -> None:
        self.cpu_s = cpu_s
        self.idle_s += step_s
        self._window_s += step_s
        is_busy = cpu_s - self._window_cpu_s >= self.BUSY_CPU_S
        if is_busy:
            self.idle_s = 0.0
        if is_busy or self._window_s >= self.WINDOW_S:
            self._window_s, self._window_cpu_s = 0.0, cpu_s

    def _thaw(self) -> Event | None:
        self.stopped_s = 0.0
        reported, self._reported = self._reported, None
        return "thawed" if reported else None
