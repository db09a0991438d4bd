"""Starts programs directly on this machine, and over SSH on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host, is_local
from bfrun.launch.base import Launcher, ProcessConnection
from bfrun.launch.local import LocalLauncher
from bfrun.parallel import for_each
from bfrun.probe import interface_addresses


def remote_hosts(
    config: LaunchConfig, known: Mapping[Host, bool] | None = None
) -> frozenset[Host]:
    """Return the hosts of ``config`` whose agents start over SSH.

    Args:
        config: The hosts, and how to start the agents.
        known: Whether a host is this machine, for hosts that need not be resolved.

    Raises:
        LaunchError: ``--launcher local`` with a host that is not this machine.
    """
    if config.launcher == "ssh":
        return frozenset(config.hosts)
    own = [address for _, address in interface_addresses()]
    is_here = dict(known or {})

    def resolve(host: Host) -> None:
        is_here[host] = is_local(host, own)

    # The resolver may need seconds for a name that only the SSH settings know.
    for_each([host for host in config.hosts if host not in is_here], resolve)
    remote = [host for host in config.hosts if not is_here[host]]
    if remote and config.launcher == "local":
        raise LaunchError(
            f"--launcher local: host '{remote[0].name}' is not this machine; use "
            "--launcher auto or ssh"
        )
    return frozenset(remote)


class PerHostLauncher(Launcher):
    """Starts programs on this machine as children, and on other hosts over SSH."""

    def __init__(self, config: LaunchConfig, remote: frozenset[Host]) -> None:
        """Prepare to reach the hosts in ``remote`` over SSH.

        Raises:
            LaunchError: The SSH settings cannot be used.
        """
        self._remote = remote
        self._local = LocalLauncher()
        self._ssh: Launcher | None = None
        if remote:
            # paramiko takes a quarter of a second to import.
            from bfrun.launch.ssh import SshLauncher

            self._ssh = SshLauncher(config)

    def start(
        self, host: Host, argv: Sequence[str], timeout_s: float
    ) -> ProcessConnection:
        """Start ``argv`` on ``host``; see :class:`Launcher`."""
        if self._ssh is not None and host in self._remote:
            return self._ssh.start(host, argv, timeout_s)
        return self._local.start(host, argv, timeout_s)

    def is_local(self, host: Host) -> bool:
        """Return whether ``host`` is this machine; see :class:`Launcher`."""
        return host not in self._remote

    def close(self) -> None:
        """Close every connection."""
        if self._ssh is not None:
            self._ssh.close()
        self._local.close()


def launcher_for(
    config: LaunchConfig,
    hosts: Sequence[Host],
    known: Mapping[Host, bool] | None = None,
) -> PerHostLauncher:
    """Return a launcher of its own for some hosts. The caller owns it.

    Args:
        config: Settings of the job.
        hosts: The hosts.
        known: As for ``remote_hosts``.

    Raises:
        LaunchError: As for ``remote_hosts``, or the SSH settings cannot be used.
    """
    remote = remote_hosts(replace(config, hosts=tuple(hosts)), known)
    return PerHostLauncher(config, remote)
