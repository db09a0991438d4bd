"""Starts programs directly on this machine, and over SSH on others."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host, is_local
from bfrun.launch.base import Launcher, ProcessConnection
from bfrun.launch.local import LocalLauncher
from bfrun.probe import interface_addresses


def remote_hosts(config: LaunchConfig) -> frozenset[Host]:
    """Return the hosts of ``config`` whose agents start over SSH.

    Raises:
        LaunchError: ``--launcher local`` with a host that is not this machine.
    """
    if config.launcher == "ssh":
        return frozenset(config.hosts)
    own = [address for _, address in interface_addresses()]
    if not config.hosts:
        return frozenset()
    # The resolver may need seconds for a name that only the SSH settings know.
    with ThreadPoolExecutor(min(32, len(config.hosts))) as pool:
        local = pool.map(lambda host: is_local(host, own), config.hosts)
        answers = zip(config.hosts, local, strict=True)
        remote = [host for host, here in answers if not here]
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


def launcher_for(config: LaunchConfig, hosts: Sequence[Host]) -> PerHostLauncher:
    """Return a launcher of its own for some hosts. The caller owns it.

    Raises:
        LaunchError: As for ``remote_hosts``, or the SSH settings cannot be used.
    """
    remote = remote_hosts(replace(config, hosts=tuple(hosts)))
    return PerHostLauncher(config, remote)
