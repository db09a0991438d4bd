"""Reaches agents that run already, on this machine or over SSH, through a relay."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from bfrun.agent import relay
from bfrun.config import LaunchConfig
from bfrun.hosts import Host
from bfrun.launch.archive import receiving_program, source_archive
from bfrun.launch.base import Launcher, ProcessConnection
from bfrun.launch.bootstrap import new_marker
from bfrun.launch.per_host import PerHostLauncher

_FILES = ("agent/__init__.py", "agent/kernel.py", "agent/procs.py", "agent/relay.py")
_MAIN = """\
from bfrun.agent import relay
relay.main(*sys.argv[2:])
"""
# Seconds to log in to a host. Later attempts follow.
_REACH_S = 15.0


@dataclass(frozen=True)
class AgentAddress:
    """Where an agent runs, and how to get there.

    Attributes:
        host: Its host.
        is_remote: Whether the host is reached over SSH.
        python: Interpreter of the agent, which runs the relay.
        socket: Path of the socket at which the agent takes another driver.
        machine_id: ``kernel.machine_id()`` on the host.
        pids: Process ids of the agent and of its guard.
    """

    host: Host
    is_remote: bool
    python: str
    socket: str
    machine_id: str
    pids: tuple[int, ...]


@dataclass(frozen=True)
class ReachedAgent:
    """A connection to an agent that runs already.

    Attributes:
        connection: The connection, owned by the holder.
        marker: Bytes that come before the agent's first frame.
        archive: Bytes to send before the first frame.
    """

    connection: ProcessConnection
    marker: bytes
    archive: bytes


class RelayConnection(ProcessConnection):
    """Standard input and output of a relay, which stand for its agent.

    Args:
        inner: The connection to the relay. Closed with this one.
        launcher: The launcher that has made it. Closed with this one.
    """

    def __init__(self, inner: ProcessConnection, launcher: Launcher) -> None:
        self._inner = inner
        self._launcher = launcher

    def fileno(self) -> int:
        """Return the descriptor to poll; see :class:`ProcessConnection`."""
        return self._inner.fileno()

    def receive(self, nbytes: int) -> bytes | None:
        """Return what the agent has sent; see :class:`ProcessConnection`."""
        return self._inner.receive(nbytes)

    def send(self, data: bytes | memoryview) -> int:
        """Send bytes to the agent; see :class:`ProcessConnection`."""
        return self._inner.send(data)

    def diagnosis(self) -> str:
        """Return what the relay has written to its standard error."""
        return self._inner.diagnosis()

    def wait(self, timeout_s: float) -> int | None:
        """Wait until the agent and its guard have ended.

        Returns:
            0 if the relay says so, otherwise None: the end of the relay proves nothing.
        """
        return 0 if self._inner.wait(timeout_s) == relay.GONE else None

    def close(self) -> None:
        """Close the connection; the relay then ends, but not the agent."""
        self._inner.close()
        self._launcher.close()


@functools.lru_cache(maxsize=1)
def _archive() -> bytes:
    return source_archive(_FILES)


def relay_argv(address: AgentAddress, marker: bytes, archive_nbytes: int) -> list[str]:
    """Return the command that receives the archive and becomes the relay.

    Args:
        address: The agent to reach.
        marker: Bytes that the relay writes before the agent's first byte.
        archive_nbytes: Length of the archive, which comes first in the relay's input.
    """
    words = (marker.decode("ascii"), address.socket, address.machine_id)
    pids: Sequence[str] = [str(pid) for pid in address.pids]
    program = receiving_program("bfrun's relay", _MAIN, archive_nbytes, *words, *pids)
    return [address.python, *program]


def reach_agent(address: AgentAddress, config: LaunchConfig) -> ReachedAgent:
    """Start a relay on the host of an agent, without waiting for the agent's answer.

    Each call logs in anew, because an earlier connection may have been cut unnoticed.
    It may block for 15 s, and may be called from any thread.

    Args:
        address: The agent to reach.
        config: Settings for SSH.

    Raises:
        LaunchError: The host cannot be reached.
    """
    remote = frozenset([address.host] if address.is_remote else [])
    launcher = PerHostLauncher(config, remote)
    marker, archive = new_marker(), _archive()
    try:
        argv = relay_argv(address, marker, len(archive))
        inner = launcher.start(address.host, argv, _REACH_S)
    except BaseException:
        launcher.close()
        raise
    return ReachedAgent(RelayConnection(inner, launcher), marker, archive)
