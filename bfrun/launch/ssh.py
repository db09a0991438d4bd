"""Starts programs on other hosts over SSH."""

from __future__ import annotations

import contextlib
import shlex
import socket
import threading
import time
from collections.abc import Sequence

import paramiko

from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.base import Launcher, ProcessConnection
from bfrun.launch.ssh_connection import SshConnection
from bfrun.launch.ssh_settings import SshSettings, read_ssh_config, ssh_settings

_CHUNK = 64 * 1024
_STDERR_KEPT = 4 * 1024
# After a program has ended, its children may still hold its standard error.
_LAST_WORDS_S = 1.0


class SshProcessConnection(ProcessConnection):
    """Standard input and output of a program, over one SSH channel.

    paramiko's channels block if the network is cut and the socket is full. So three
    threads use the channel, and the driver uses a socket pair, which never blocks.
    """

    def __init__(self, connection: SshConnection, channel: paramiko.Channel) -> None:
        """Take over ``channel``. ``connection`` is cut if the program did not end."""
        self._connection = connection
        self._channel = channel
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        # Bytes that the driver has sent, and that the thread below has passed on.
        self._taken = self._passed_on = 0
        self._stderr = b""
        bodies = (self._read_output, self._read_errors, self._write_input)
        self._threads = [threading.Thread(target=body, daemon=True) for body in bodies]
        self._errors_reader, self._writer = self._threads[1:]
        for thread in self._threads:
            thread.start()

    def fileno(self) -> int:
        """Return the driver's end of the socket pair."""
        return self._near.fileno()

    def receive(self, nbytes: int) -> bytes | None:
        """Return output of the program; see :class:`ProcessConnection`."""
        try:
            return self._near.recv(nbytes)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send(self, data: bytes | memoryview) -> int:
        """Write bytes to the program; see :class:`ProcessConnection`."""
        try:
            taken = self._near.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionError(f"the SSH channel is closed: {error}") from error
        self._taken += taken
        return taken

    @property
    def has_unsent(self) -> bool:
        """Whether a thread has yet to send bytes; see :class:`ProcessConnection`."""
        return self._passed_on < self._taken and self._writer.is_alive()

    def diagnosis(self) -> str:
        """Return the end of the program's standard error, or that SSH broke."""
        said = self._stderr.decode(errors="replace").strip()
        if said or self._connection.is_active():
            return said
        return "the SSH connection broke"

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the exit status; see :class:`ProcessConnection`."""
        deadline = time.monotonic() + timeout_s
        if not self._channel.status_event.wait(timeout_s):
            return None
        # Let the thread read the last errors, so that diagnosis() has them.
        left_s = deadline - time.monotonic()
        self._errors_reader.join(max(0.0, min(left_s, _LAST_WORDS_S)))
        # -1 stands for a channel that closed without a status.
        return None if self._channel.exit_status == -1 else self._channel.exit_status

    def close(self) -> None:
        """Close the channel if the program ended, or else cut the connection."""
        if self._near.fileno() < 0:
            return
        if self._channel.exit_status_ready() and self._connection.is_active():
            self._channel.close()
        else:
            self._connection.close()
        for end in (self._near, self._far):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._near.close()
        self._far.close()

    def _read_output(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while data := self._channel.recv(_CHUNK):
                self._far.sendall(data)
        with contextlib.suppress(OSError):
            self._far.shutdown(socket.SHUT_WR)

    def _read_errors(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while data := self._channel.recv_stderr(_CHUNK):
                self._stderr = (self._stderr + data)[-_STDERR_KEPT:]

    def _write_input(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while data := self._far.recv(_CHUNK):
                self._channel.sendall(data)
                self._passed_on += len(data)
        with contextlib.suppress(OSError):
            self._far.shutdown(socket.SHUT_RD)


def quote_for_any_shell(argv: Sequence[str]) -> str:
    """Return a command line that runs ``argv`` in any login shell.

    This is the only function that quotes a command line. csh ends a string at a newline
    and fish has its own escapes, so the line for /bin/sh is written in octal numbers.
    """
    line = ("exec " + shlex.join(argv)).encode()
    octal = "".join(
        chr(b) if chr(b).isalnum() and b < 128 else f"\\0{b:03o}" for b in line
    )
    return f'exec /bin/sh -c \'eval "$(printf %b "{octal}")"\''


class SshLauncher(Launcher):
    """Starts programs over SSH.

    It keeps the connection to a host for its next start. All hosts behind a jump host
    share one connection to it, because an SSH server may drop many logins at once.
    """

    def __init__(self, config: LaunchConfig) -> None:
        """Read the SSH settings.

        Raises:
            LaunchError: The settings file cannot be used.
        """
        self._config = config
        self._ssh_config = read_ssh_config(config.ssh_config)
        self._lock = threading.Lock()
        self._connections: dict[Host, SshConnection] = {}
        self._jump_lock = threading.Lock()
        self._jumps: dict[tuple[SshSettings, ...], SshConnection] = {}

    def start(
        self, host: Host, argv: Sequence[str], timeout_s: float
    ) -> ProcessConnection:
        """Start ``argv`` on ``host``; see :class:`Launcher`."""
        deadline = time.monotonic() + timeout_s
        connection = self._connection(host, deadline)
        channel = connection.open(_left_s(deadline))
        try:
            channel.exec_command(quote_for_any_shell(argv))
        except (OSError, EOFError, paramiko.SSHException) as error:
            channel.close()
            raise LaunchError(
                f"host '{host.name}': the SSH server does not run a command: {error}; "
                f"check that 'ssh {host.name} true' works"
            ) from error
        return SshProcessConnection(connection, channel)

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            connections = list(self._connections.values())
            self._connections.clear()
        with self._jump_lock:
            # Close connections through a jump host before those to it.
            jumps = sorted(self._jumps, key=len, reverse=True)
            connections += [self._jumps.pop(route) for route in jumps]
        for connection in connections:
            connection.close()

    def _connection(self, host: Host, deadline: float) -> SshConnection:
        with self._lock:
            known = self._connections.get(host)
        if known is not None and known.is_active():
            return known
        settings = ssh_settings(self._config, self._ssh_config, host)
        through = None
        for count in range(1, len(settings.jumps) + 1):
            through = self._jump(settings, count, through, deadline)
        connection = SshConnection(settings, settings, through, _left_s(deadline))
        with self._lock:
            self._connections[host] = connection
        return connection

    def _jump(
        self,
        target: SshSettings,
        count: int,
        through: SshConnection | None,
        deadline: float,
    ) -> SshConnection:
        """Return the connection to the last of the first ``count`` jump hosts."""
        route = target.jumps[:count]
        with self._jump_lock:
            known = self._jumps.get(route)
            if known is None or not known.is_active():
                left_s = _left_s(deadline)
                known = SshConnection(target, route[-1], through, left_s)
                self._jumps[route] = known
            return known


def _left_s(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())
