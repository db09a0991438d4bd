"""One SSH connection to a host, through its jump hosts, never asking a question."""

from __future__ import annotations

import contextlib
import logging
import os
import time

import paramiko

from bfrun.errors import LaunchError
from bfrun.launch.ssh_errors import UnknownHostKey, explain
from bfrun.launch.ssh_settings import SshSettings

# paramiko logs what it also raises; without a handler Python prints that to stderr.
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
        """Accept without saving: the user's settings say so."""


class SshConnection:
    """A logged-in connection. Owns its socket, its thread and those of its jumps."""

    def __init__(self, settings: SshSettings, timeout_s: float) -> None:
        """Connect and log in.

        Args:
            settings: Where and how.
            timeout_s: Seconds for all of it.

        Raises:
            LaunchError: Names host, reason and remedy.
        """
        self._settings = settings
        self._clients: list[paramiko.SSHClient] = []
        deadline = time.monotonic() + timeout_s
        try:
            for hop in (*settings.jumps, settings):
                self._connect(hop, deadline)
        except BaseException:
            self.close()
            raise

    def open(self, timeout_s: float) -> paramiko.Channel:
        """Return a new session on the host.

        Raises:
            LaunchError: The connection broke or the host allows no more sessions.
        """
        try:
            return self._transport().open_session(timeout=timeout_s)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise LaunchError(explain(self._settings, self._settings, error)) from error

    def is_active(self) -> bool:
        """Say whether the connection still stands, as far as is known."""
        transport = self._clients[-1].get_transport() if self._clients else None
        return transport is not None and transport.is_active()

    def close(self) -> None:
        """Cut the connection at once and end its threads."""
        while self._clients:
            with contextlib.suppress(OSError, EOFError):
                self._clients.pop().close()

    def _transport(self) -> paramiko.Transport:
        transport = self._clients[-1].get_transport() if self._clients else None
        if transport is None:
            raise EOFError("the connection is closed")
        return transport

    def _connect(self, hop: SshSettings, deadline: float) -> None:
        left = max(0.1, deadline - time.monotonic())
        timeout_s = min(left, hop.connect_timeout_s or left)
        client = paramiko.SSHClient()
        policy = _AcceptUnknownKey if hop.accepts_unknown_key else _RefuseUnknownKey
        client.set_missing_host_key_policy(policy())
        for file in hop.known_hosts:
            if os.path.exists(file):
                _load_host_keys(client, file)
        try:
            client.connect(
                hop.address,
                port=hop.port,
                username=hop.user,
                # The stub knows one file only, paramiko takes a list.
                key_filename=list(hop.identity_files),  # type: ignore[arg-type]
                look_for_keys=not hop.identity_files,
                timeout=timeout_s,
                banner_timeout=timeout_s,
                auth_timeout=timeout_s,
                channel_timeout=timeout_s,
                sock=self._through(hop, timeout_s),
            )
        except (OSError, EOFError, paramiko.SSHException, UnknownHostKey) as error:
            client.close()
            raise LaunchError(explain(self._settings, hop, error)) from error
        self._clients.append(client)

    def _through(self, hop: SshSettings, timeout_s: float) -> paramiko.Channel | None:
        """Return a link to ``hop`` through the jump host before it, if there is one."""
        if not self._clients:
            return None
        target = (hop.address, hop.port)
        return self._transport().open_channel(
            "direct-tcpip", target, ("127.0.0.1", 0), timeout=timeout_s
        )


def _load_host_keys(client: paramiko.SSHClient, file: str) -> None:
    try:
        client.load_system_host_keys(file)
    except (OSError, UnicodeDecodeError, paramiko.SSHException) as error:
        raise LaunchError(f"known hosts '{file}': cannot be read: {error}") from error
