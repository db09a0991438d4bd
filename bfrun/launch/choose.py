"""Chooses the way in which the agents of a job start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bfrun.allocation import is_in_allocation, read_allocation
from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.base import Launcher
from bfrun.launch.per_host import PerHostLauncher, remote_hosts
from bfrun.launch.slurm import SlurmLauncher


@dataclass(frozen=True)
class Choice:
    """How the agents of a job start.

    Attributes:
        config: The settings, with the hosts of the allocation where there is one.
        remote: Hosts that are asked for their facts through the launcher.
        launcher: Starts the agents; the caller closes it.
        cores: How many cores the job has on a host, where a batch system says it.
    """

    config: LaunchConfig
    remote: frozenset[Host]
    launcher: Launcher
    cores: Mapping[Host, int] = field(default_factory=dict)


def choose_launcher(config: LaunchConfig, environ: Mapping[str, str]) -> Choice:
    """Return how the agents of ``config`` start.

    Inside a Slurm allocation, where no hosts are named: by ``srun`` on the hosts of the
    allocation. Else this machine directly, and others over SSH.

    Raises:
        LaunchError: The hosts do not fit the launcher, the allocation cannot be used,
            or the SSH settings cannot.
    """
    wants_slurm = config.launcher == "auto" and not config.hosts
    if config.launcher == "slurm" or (wants_slurm and is_in_allocation(environ)):
        return _choose_slurm(config, environ)
    remote = remote_hosts(config)
    return Choice(config, remote, PerHostLauncher(config, remote))


def _choose_slurm(config: LaunchConfig, environ: Mapping[str, str]) -> Choice:
    allocation = read_allocation(environ)
    cpus = {host.name: count for host, count in allocation.cpus.items()}
    for host in config.hosts:
        if host.name not in cpus:
            raise LaunchError(
                f"host '{host.name}' is not in Slurm job {allocation.job}, whose hosts "
                f"are {', '.join(cpus)}; leave -H out, or use --launcher ssh"
            )
    hosts = config.hosts or allocation.hosts
    known = replace(allocation, cpus={host: cpus[host.name] for host in hosts})
    config = replace(config, hosts=hosts)
    return Choice(config, frozenset(hosts), SlurmLauncher(known), known.cpus)
