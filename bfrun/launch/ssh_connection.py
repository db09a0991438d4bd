"""One SSH connection to a host, perhaps through another one. It never prompts."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import Any

import paramiko

from bfrun.errors import LaunchError
from bfrun.launch.ssh_errors import UnknownHostKey, explain
from bfrun.launch.ssh_settings import SshSettings

# Seconds for a TCP connection, unless the SSH settings have ConnectTimeout.
REACH_S = 15.0

_TCP_RTO_MAX_MS = 44  # <linux/tcp.h>, Linux 6.15
_DAY_MS = 86_400_000

# paramiko also logs the errors that it raises, and Python prints them by default.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _RefuseUnknownKey(paramiko.MissingHostKeyPolicy):
    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        raise UnknownHostKey(key.get_name(), key.fingerprint)


class _AcceptUnknownKey(paramiko.MissingHostKeyPolicy):
    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        """Accept the key without saving it, as the user's settings say."""


class SshConnection:
    """A connection that has logged in. Owns its socket and its thread."""

    def __init__(
        self,
        target: SshSettings,
        hop: SshSettings,
        through: SshConnection | None,
        timeout_s: float,
    ) -> None:
        """Connect and log in.

        Args:
            target: The host to be reached in the end, for errors.
            hop: The host to connect to: the target, or a jump host on the way.
            through: Connection to the jump host before it, not owned.
            timeout_s: Seconds in which to connect and log in.

        Raises:
            LaunchError: The connection or login failed. Names host, reason and remedy.
        """
        self._target = target
        self._hop = hop
        self._client = paramiko.SSHClient()
        try:
            self._connect(hop, through, timeout_s)
        except (OSError, EOFError, paramiko.SSHException, UnknownHostKey) as error:
            self.close()
            raise LaunchError(explain(target, hop, error)) from error
        except BaseException:
            self.close()
            raise

    def open(self, timeout_s: float) -> paramiko.Channel:
        """Return a new session on the host.

        Raises:
            LaunchError: The connection broke, or the host allows no more sessions.
        """
        try:
            return self._transport().open_session(timeout=timeout_s)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise LaunchError(explain(self._target, self._hop, error)) from error

    def is_active(self) -> bool:
        """Return whether the connection still stands, as far as is known."""
        transport = self._client.get_transport()
        return transport is not None and transport.is_active()

    def close(self) -> None:
        """Cut the connection at once and end its thread."""
        with contextlib.suppress(OSError, EOFError):
            self._client.close()

    def _transport(self) -> paramiko.Transport:
        transport = self._client.get_transport()
        if transport is None:
            raise EOFError("the connection is closed")
        return transport

    def _connect(
        self, hop: SshSettings, through: SshConnection | None, timeout_s: float
    ) -> None:
        policy = _AcceptUnknownKey if hop.accepts_unknown_key else _RefuseUnknownKey
        self._client.set_missing_host_key_policy(policy())
        for file in hop.known_hosts:
            if os.path.exists(file):
                _load_host_keys(self._client, file)
        # A host that is up answers the kernel at once, however slow its login is.
        reach_s = min(timeout_s, hop.connect_timeout_s or REACH_S)
        sock = None
        if through is not None:
            sock = through._transport().open_channel(
                "direct-tcpip",
                (hop.address, hop.port),
                ("127.0.0.1", 0),
                timeout=reach_s,
            )
        self._client.connect(
            hop.address,
            port=hop.port,
            username=hop.user,
            # The stub declares only one file, but paramiko takes a list.
            key_filename=list(hop.identity_files),  # type: ignore[arg-type]
            look_for_keys=not hop.identity_files,
            timeout=reach_s,
            banner_timeout=min(timeout_s, hop.connect_timeout_s or timeout_s),
            auth_timeout=timeout_s,
            channel_timeout=timeout_s,
            sock=sock,
        )
        _resume_soon(self._transport().sock)


def _resume_soon(link: Any) -> None:
    """Make a connection resume within a second after a cut network heals.

    By default, TCP doubles the interval between retransmissions, up to two minutes.
    Shorter intervals would also end the connection sooner, so its timeout is raised to
    a day: the heartbeats decide when a peer is lost.

    Args:
        link: A socket, or a channel through another host, which stays as it is.
    """
    if isinstance(link, socket.socket):
        with contextlib.suppress(OSError):  # Linux before 6.15
            link.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, 1000)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DAY_MS)


def _load_host_keys(client: paramiko.SSHClient, file: str) -> None:
    try:
        client.load_system_host_keys(file)
    except (OSError, UnicodeDecodeError, paramiko.SSHException) as error:
        raise LaunchError(f"known hosts '{file}' cannot be read: {error}") from error
