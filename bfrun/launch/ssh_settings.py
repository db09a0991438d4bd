"""Collects the settings for logging in to a host, as ssh does."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import paramiko

from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host, parse_host

_DEFAULT_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"


@dataclass(frozen=True)
class SshSettings:
    """Everything needed to log in to one host.

    Attributes:
        name: Name of the host, as the user wrote it.
        address: Name or address to connect to.
        port: TCP port.
        user: Login name.
        identity_files: Private keys to try; if empty, the default ones.
        known_hosts: Files with host keys.
        accepts_unknown_key: Whether the settings allow a host whose key is unknown.
        connect_timeout_s: Limit of the settings; None means the caller's.
        jumps: Hosts to go through, in order.
    """

    name: str
    address: str
    port: int
    user: str
    identity_files: tuple[str, ...]
    known_hosts: tuple[str, ...]
    accepts_unknown_key: bool
    connect_timeout_s: float | None
    jumps: tuple[SshSettings, ...] = ()


def read_ssh_config(path: str | None) -> paramiko.SSHConfig:
    """Return the parsed settings file. The default file need not exist.

    Raises:
        LaunchError: The file cannot be read, or has a wrong form.
    """
    file = Path(path or "~/.ssh/config").expanduser()
    if path is None and not file.exists():
        return paramiko.SSHConfig()
    try:
        return paramiko.SSHConfig.from_path(str(file))
    except (OSError, UnicodeDecodeError, paramiko.ConfigParseError) as error:
        raise LaunchError(f"SSH settings '{file}' cannot be read: {error}") from error


def ssh_settings(
    config: LaunchConfig, ssh_config: paramiko.SSHConfig, host: Host
) -> SshSettings:
    """Return the settings for ``host``: options, then the file, then defaults.

    Raises:
        LaunchError: The settings have something that cannot be used.
    """
    found = _lookup(ssh_config, host)
    if found.get("proxycommand", "none").lower() != "none":
        raise LaunchError(
            f"host '{host.name}': its SSH settings use ProxyCommand, which bfrun does "
            "not support; use ProxyJump instead"
        )
    identity = config.ssh_identity_file
    if identity is not None and not os.path.isfile(os.path.expanduser(identity)):
        raise LaunchError(f"--ssh-identity-file '{identity}': the file does not exist")
    base = _settings(host, found, config.ssh_port, identity)
    return SshSettings(**{**vars(base), "jumps": _jumps(ssh_config, host, found)})


def _lookup(ssh_config: paramiko.SSHConfig, host: Host) -> Mapping[str, str]:
    try:
        return ssh_config.lookup(host.name)
    except (ImportError, paramiko.SSHException) as error:
        raise LaunchError(
            f"host '{host.name}': its SSH settings cannot be used: {error}"
        ) from error


def _settings(
    host: Host, found: Mapping[str, str], port: int | None, identity: str | None
) -> SshSettings:
    # paramiko types every value as text, but returns a list of identity files.
    identities = [identity] if identity else list(found.get("identityfile", ()))
    known = found.get("userknownhostsfile", _DEFAULT_KNOWN_HOSTS).split()
    timeout = found.get("connecttimeout", "none")
    strict = found.get("stricthostkeychecking", "ask").lower()
    return SshSettings(
        name=host.name,
        address=found.get("hostname", host.name),
        port=port or int(found.get("port", 22)),
        user=host.user or found.get("user") or getpass.getuser(),
        identity_files=tuple(os.path.expanduser(file) for file in identities),
        known_hosts=tuple(
            os.path.expanduser(file) for file in [*known, _SYSTEM_KNOWN_HOSTS]
        ),
        accepts_unknown_key=strict in ("no", "off", "accept-new"),
        connect_timeout_s=float(timeout) if timeout.isdigit() else None,
    )


def _jumps(
    ssh_config: paramiko.SSHConfig, host: Host, found: Mapping[str, str]
) -> tuple[SshSettings, ...]:
    text = found.get("proxyjump", "none")
    if text.lower() == "none":
        return ()
    jumps = []
    for entry in text.split(","):
        try:
            jump = parse_host(entry.removeprefix("ssh://"))
        except LaunchError as error:
            raise LaunchError(
                f"host '{host.name}': ProxyJump '{text}' in its SSH settings: expected "
                "[user@]host[:port],..."
            ) from error
        # The number after the colon is a port here, but slots in a list of hosts.
        jumps.append(_settings(jump, _lookup(ssh_config, jump), jump.slots, None))
    return tuple(jumps)
