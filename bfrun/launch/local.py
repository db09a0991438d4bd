"""Starts programs on this machine, connected by pipes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.base import Launcher, ProcessConnection

_DIAGNOSIS_NBYTES = 4096


class LocalConnection(ProcessConnection):
    """Pipes to a child process."""

    def __init__(self, argv: Sequence[str]) -> None:
        # A file, not a pipe, so that the program never waits for a reader of its
        # errors; in memory, because a full disk must not end the agent.
        self._errors = os.fdopen(os.memfd_create("bfrun-errors"), "rb")
        try:
            self._process = subprocess.Popen(
                argv,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError:
            self._errors.close()
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        for file in (self._stdin, self._stdout):
            os.set_blocking(file.fileno(), False)
        self._goes_on = False

    def fileno(self) -> int:
        return self._stdout.fileno()

    def receive(self, nbytes: int) -> bytes | None:
        try:
            return os.read(self._stdout.fileno(), nbytes)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send(self, data: bytes | memoryview) -> int:
        try:
            return os.write(self._stdin.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionError(f"it does not read its input: {error}") from error

    def diagnosis(self) -> str:
        if self._errors.closed:
            return ""
        size = os.fstat(self._errors.fileno()).st_size
        start = max(0, size - _DIAGNOSIS_NBYTES)
        text = os.pread(self._errors.fileno(), _DIAGNOSIS_NBYTES, start)
        return text.decode("utf-8", "replace").strip()

    def wait(self, timeout_s: float) -> int | None:
        self._process.send_signal(signal.SIGCONT)  # a stopped guard would never end
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def close(self) -> None:
        self._stdin.close()
        self._stdout.close()
        if not self._goes_on:
            self.wait(1.0)
        self._errors.close()

    def leave(self) -> None:
        self._goes_on = True
        self.close()


class LocalLauncher(Launcher):
    """Starts programs as children of this process, whichever host is named."""

    def start(
        self, host: Host, argv: Sequence[str], timeout_s: float
    ) -> ProcessConnection:
        try:
            return LocalConnection(argv)
        except OSError as error:
            raise LaunchError(
                f"host '{host.name}': the agent could not be started with "
                f"'{argv[0]}': {error}; name an interpreter with --python"
            ) from error

    def is_local(self, host: Host) -> bool:
        return True

    def close(self) -> None:
        """Do nothing, because connections share nothing."""
