"""How a program is started on a host, and the byte stream to it.

Each way to start programs (child process, SSH, srun) implements these two classes. Only
the driver uses them: an agent knows nothing but its own standard input and output.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from bfrun.hosts import Host


class ProcessConnection(abc.ABC):
    """Non-blocking standard input and output of one started program.

    One thread, the driver's, calls all methods. The caller of ``Launcher.start`` owns
    the connection and must close it; closing it again does nothing.
    """

    @abc.abstractmethod
    def fileno(self) -> int:
        """Return a descriptor that polls readable whenever ``receive`` has data."""

    @abc.abstractmethod
    def receive(self, nbytes: int) -> bytes | None:
        """Return at most ``nbytes`` of the program's output, without waiting.

        Returns:
            Bytes; ``b""`` at the end of the stream or when the connection broke;
            ``None`` when nothing has arrived since the last call.
        """

    @abc.abstractmethod
    def send(self, data: bytes | memoryview) -> int:
        """Write bytes to the program's input, without waiting.

        Returns:
            How many bytes were taken; 0 while the connection is full.

        Raises:
            ConnectionError: The program no longer reads, or the connection broke.
        """

    @property
    def has_unsent(self) -> bool:
        """Whether this process still holds bytes that ``send`` has taken."""
        return False

    @abc.abstractmethod
    def diagnosis(self) -> str:
        """Return what is known of why the program ended.

        This is the last few KiB of the program's standard error, and the reason that
        the transport gave, if any. Returns an empty string if nothing is known.
        """

    @abc.abstractmethod
    def wait(self, timeout_s: float) -> int | None:
        """Wait until the program has ended.

        Returns:
            Its exit status, negative for a signal where that is known; ``None`` if it
            still runs after ``timeout_s``, or the connection broke without a status.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection at once; an agent then reads end-of-file and ends.

        Releases every descriptor and thread. Waits at most one second.
        """

    def leave(self) -> None:
        """Close the connection at once, although the program goes on without it."""
        self.close()


class NoConnection(ProcessConnection):
    """Stands for the connection to a program that could not be reached."""

    def fileno(self) -> int:
        """Return no descriptor."""
        return -1

    def receive(self, nbytes: int) -> bytes | None:
        """Return the end of the stream."""
        return b""

    def send(self, data: bytes | memoryview) -> int:
        """Raise, because nobody reads."""
        raise ConnectionError("it has not been reached")

    def diagnosis(self) -> str:
        """Return nothing."""
        return ""

    def wait(self, timeout_s: float) -> int | None:
        """Return None, because nothing is known of the program's end."""
        return None

    def close(self) -> None:
        """Do nothing."""


class Launcher(abc.ABC):
    """One way to start programs. A launcher may serve many hosts."""

    @abc.abstractmethod
    def start(
        self, host: Host, argv: Sequence[str], timeout_s: float
    ) -> ProcessConnection:
        """Start ``argv`` on ``host`` in a session of its own.

        The driver calls this from one thread per host, so an implementation must be
        thread-safe and may block.

        Args:
            host: The host to start it on.
            argv: Program and arguments, not quoted for any shell.
            timeout_s: Seconds to connect and start.

        Returns:
            A connection to the program's standard input and output, owned by the
            caller.

        Raises:
            LaunchError: The host cannot be reached or the program cannot be started.
                Names host, reason and remedy.
        """

    def is_local(self, host: Host) -> bool:
        """Return whether programs on ``host`` are children of this process."""
        return False

    @abc.abstractmethod
    def close(self) -> None:
        """Release what the launcher shares between its connections."""
