"""Explains why a host cannot be reached over SSH, and what to do about it."""

from __future__ import annotations

import socket

import paramiko

from bfrun.launch.ssh_settings import SshSettings


class UnknownHostKey(Exception):
    """The host's key is not in any known-hosts file."""

    def __init__(self, key_type: str, fingerprint: str) -> None:
        super().__init__(f"{key_type} {fingerprint}")


def explain(target: SshSettings, hop: SshSettings, error: BaseException) -> str:
    """Return an error text with host, reason and remedy.

    Args:
        target: The host to be reached.
        hop: The host where it failed: the target, or a jump host before it.
        error: Error of paramiko or of the socket.
    """
    where = f"host '{target.name}'"
    if hop is not target:
        where += f", jump host '{hop.name}'"
    reason, remedy = _reason(hop, error)
    address = f"{hop.user}@{hop.address} port {hop.port}"
    return f"{where}: {reason} ({address}); {remedy}"


def _reason(hop: SshSettings, error: BaseException) -> tuple[str, str]:
    login = f"ssh -p {hop.port} {hop.user}@{hop.address}"
    if isinstance(error, UnknownHostKey):
        return (
            f"its SSH host key is not known: {error}",
            f"run '{login}' once and compare the fingerprint, or add the key to "
            f"{hop.known_hosts[0]}",
        )
    if isinstance(error, paramiko.BadHostKeyException):
        entry = hop.address if hop.port == 22 else f"[{hop.address}]:{hop.port}"
        return (
            "its SSH host key has changed: it was installed again, or another machine "
            "answers in its place",
            f"if that is expected, remove the old key with ssh-keygen -R '{entry}'",
        )
    if isinstance(error, paramiko.AuthenticationException):
        return (
            "login refused, because no key was accepted and bfrun asks for no password",
            f"'{login}' must work without a prompt: install your key with "
            "ssh-copy-id, load it into the SSH agent, or name it with -i",
        )
    return _network_reason(error)


def _network_reason(error: BaseException) -> tuple[str, str]:
    if isinstance(error, socket.gaierror):
        return (
            f"its name has no address: {error.strerror}",
            "check the spelling, or give its address in ~/.ssh/config (HostName)",
        )
    if isinstance(error, TimeoutError):
        return (
            "no answer",
            "check that it is switched on, and that no firewall drops the port",
        )
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        causes = {
            getattr(each, "strerror", str(each)) for each in error.errors.values()
        }
        return (
            f"no connection: {', '.join(sorted(causes))}",
            "check that sshd runs there and listens on this port (-p, ~/.ssh/config)",
        )
    if isinstance(error, paramiko.ChannelException):
        return (
            f"the SSH server refused: {error.text or error}",
            "check that the host is reachable from there and allows the session",
        )
    text = str(error) or type(error).__name__
    return (
        f"no SSH connection: {text}",
        "check that an SSH server listens on this port and has room for sessions",
    )
