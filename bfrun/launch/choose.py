"""Chooses how the agents of a job are started."""

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
    """The launcher of a job, and what follows from it.

    Attributes:
        config: The settings, with the hosts of the allocation if there is one.
        remote: Hosts whose cores and GPUs the pre-flight asks for.
        launcher: Starts the agents. The caller closes it.
        cores: Number of cores of the job on each host, if a batch system limits it.
    """

    config: LaunchConfig
    remote: frozenset[Host]
    launcher: Launcher
    cores: Mapping[Host, int] = field(default_factory=dict)


def choose_launcher(config: LaunchConfig, environ: Mapping[str, str]) -> Choice:
    """Return how to start the agents of ``config``.

    Inside a Slurm allocation, unless hosts are named, ``srun`` starts them on the hosts
    of the allocation. Otherwise they start directly on this machine, and over SSH on
    others.

    Raises:
        LaunchError: The hosts do not fit the launcher, or the allocation or the SSH
            settings cannot be used.
    """
    wants_slurm = config.launcher == "auto" and not config.hosts
    if config.launcher == "slurm" or (wants_slurm and is_in_allocation(environ)):
        return _choose_slurm(config, environ)
    remote = remote_hosts(config)
    return Choice(config, remote, PerHostLauncher(config, remote))


def refuse_survival(config: LaunchConfig, launcher: str) -> None:
    """Raise if the job is to survive failures, but its launcher does not.

    Raises:
        LaunchError: ``--on-failure continue`` was given.
    """
    if config.on_failure == "continue":
        raise LaunchError(
            f"--on-failure continue does not cover the launcher '{launcher}' yet, "
            "which may end all ranks when one fails; use --launcher local or ssh"
        )


def check_failures(config: LaunchConfig) -> None:
    """Raise unless the options for failures go together.

    Raises:
        LaunchError: ``--min-np``, ``--elastic-timeout`` or ``--respawn`` was given
            without ``--on-failure continue``, ``--min-np`` is not between 1 and the
            number of ranks, ``--respawn-after`` was given although lost ranks are not
            started again, or ``--partition both`` without ``--respawn``, or for a job
            that grows.
    """
    given = {
        "--min-np": config.min_np is not None,
        "--elastic-timeout": config.elastic_timeout_s is not None,
        "--respawn": config.respawn,
        "--partition both": config.partition == "both",
    }
    if any(given.values()) and config.on_failure != "continue":
        name = next(name for name, is_given in given.items() if is_given)
        raise LaunchError(
            f"{name} is for jobs that go on after a failure, but by default the first "
            "failure ends the job; add --on-failure continue"
        )
    if config.min_np is not None:
        most = config.world_size
        if config.min_np < 1 or (most is not None and config.min_np > most):
            raise LaunchError(
                "--min-np must be at least 1 and at most the number of ranks"
                f"{'' if most is None else f' ({most})'}, got {config.min_np}"
            )
    if config.respawn_after_s is not None and not (config.respawn or config.may_grow):
        raise LaunchError(
            "--respawn-after is for jobs that start lost ranks again; add --respawn"
        )
    if config.partition == "both":
        _check_partition(config)


def _check_partition(config: LaunchConfig) -> None:
    if config.may_grow:
        raise LaunchError(
            "--partition both does not go with --max-np and --host-discovery-script "
            "yet; leave one of them out"
        )
    if not config.respawn:
        raise LaunchError(
            "--partition both needs --respawn, because after a partition the ranks of "
            "the other sides join the job again as lost ranks do; add --respawn"
        )


def _choose_slurm(config: LaunchConfig, environ: Mapping[str, str]) -> Choice:
    refuse_survival(config, "slurm")
    allocation = read_allocation(environ)
    cpus = {host.name: count for host, count in allocation.cpus.items()}
    for host in config.hosts:
        if host.name not in cpus:
            raise LaunchError(
                f"host '{host.name}' does not belong to Slurm job {allocation.job}, "
                f"whose hosts are {', '.join(cpus)}; leave -H out, or use "
                "--launcher ssh"
            )
    hosts = config.hosts or allocation.hosts
    known = replace(allocation, cpus={host: cpus[host.name] for host in hosts})
    config = replace(config, hosts=hosts)
    return Choice(config, frozenset(hosts), SlurmLauncher(known), known.cpus)
