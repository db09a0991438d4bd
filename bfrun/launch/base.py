"""How an agent is started on a host, and the byte link to it.

A way to start agents (local pipe, SSH channel) implements these two classes. Both
are used by the driver only; the agent itself knows nothing but its own standard
input and output.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from bfrun.hosts import Host


class AgentLink(abc.ABC):
    """Standard input and output of one started agent, never blocking.

    All methods are called from one thread, the driver's, except ``fileno`` of a link
    that is closed. The starter owns the link and closes it exactly once; ``close``
    may be called again and then does nothing.
    """

    @abc.abstractmethod
    def fileno(self) -> int:
        """Return a descriptor that polls readable whenever ``receive`` has news."""

    @abc.abstractmethod
    def receive(self, nbytes: int) -> bytes | None:
        """Return at most ``nbytes`` of the agent's output, without waiting.

        Returns:
            Bytes; ``b""`` at the end of the stream or when the link broke; ``None``
            when nothing has come since the last call.
        """

    @abc.abstractmethod
    def send(self, data: bytes | memoryview) -> int:
        """Hand bytes to the agent's input, without waiting.

        Returns:
            How many bytes were taken, 0 when the link is full now.

        Raises:
            ConnectionError: The agent no longer reads, or the link broke.
        """

    @abc.abstractmethod
    def diagnosis(self) -> str:
        """Return what is known of why the link ended.

        That is the last few KiB of the agent's standard error, and the reason the
        transport gave, if any; an empty string where there is nothing to say.
        """

    @abc.abstractmethod
    def wait(self, timeout_s: float) -> int | None:
        """Wait until the agent has ended.

        Returns:
            Its exit status, negative for a signal where that is known; ``None`` when
            it still runs after ``timeout_s``, or the link broke without a status.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Drop the link at once: the agent reads end-of-file and ends its ranks.

        Releases every descriptor, thread and connection of this link. Waits at most
        a second.
        """


class Launcher(abc.ABC):
    """One way to start agents. A launcher may serve many hosts."""

    @abc.abstractmethod
    def start(self, host: Host, argv: Sequence[str], timeout_s: float) -> AgentLink:
        """Start ``argv`` on ``host`` in a session of its own, and return the link.

        The driver calls this from one thread per host, so it must be thread-safe and
        may block.

        Args:
            host: Where to start.
            argv: Program and arguments, not quoted for any shell. Its standard
                input and output become the link.
            timeout_s: Seconds to connect and start.

        Returns:
            A fresh link, owned by the caller.

        Raises:
            LaunchError: The host cannot be reached or the program cannot be started;
                names host, reason and remedy.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release what the launcher shares between its links."""
