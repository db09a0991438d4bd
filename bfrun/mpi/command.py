"""Makes the mpirun command of a job: a pure function of settings.

Each implementation has its own options:

=================  ==============================  ==============================
setting            Open MPI                        MPICH
=================  ==============================  ==============================
hosts, slots       ``--host a:2,b:2``              ``-hosts a:2,b:2``
variables          ``-x NAME``                     ``-genvlist NAME,...``
cores              ``--bind-to``                   ``-bind-to``
oversubscription   ``--oversubscribe`` (4),        not limited
                   ``--map-by :OVERSUBSCRIBE`` (5)
yield when idle    ``mpi_yield_when_idle``         no setting
this host          found by itself                 ``-localhost``
interface          ``btl_tcp_if_include``          ``-iface``
InfiniBand         ``pml ucx``                     ``MPIR_CVAR_CH4_NETMOD=ucx``
=================  ==============================  ==============================

Without ``--use-infiniband``, the site's MPI chooses the network. bfrun excludes none of
its transports, because MPI may then choose one that does not work.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bfrun.addresses import is_ip
from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.mpi.implementation import MpiImplementation
from bfrun.nccl_net import INTERFACES_NAME


@dataclass(frozen=True)
class MpiCommand:
    """An mpirun command and its environment.

    Attributes:
        argv: mpirun, its options and the program.
        variables: Variables that mpirun passes to the ranks.
        settings: Variables for mpirun itself.
    """

    argv: tuple[str, ...]
    variables: Mapping[str, str]
    settings: Mapping[str, str]


def make_command(
    config: LaunchConfig,
    hosts: Sequence[tuple[Host, int]],
    mpi: MpiImplementation,
    variables: Mapping[str, str],
    program: Sequence[str],
    *,
    takes_turns: bool,
    own_address: str | None = None,
) -> MpiCommand:
    """Return the command that starts ``program`` on each rank.

    Args:
        config: The user's settings.
        hosts: Hosts and their numbers of ranks; if empty, this machine runs all.
        mpi: The implementation of MPI.
        variables: Environment of the ranks.
        program: Command that mpirun starts.
        takes_turns: Whether some host has more ranks than cores.
        own_address: Address at which the other hosts reach this one; None if they
            know its name.

    Raises:
        LaunchError: The implementation has no option for one of the settings.
    """
    for host, _ in hosts:
        if host.user is not None:
            raise LaunchError(
                f"--launcher mpi: host '{host}': mpirun takes no login names; set the "
                "user in ~/.ssh/config"
            )
        if ":" in host.name:
            raise LaunchError(
                f"--launcher mpi: host '{host}': mpirun takes no IPv6 addresses; give "
                "the address a name in /etc/hosts"
            )
    settings: dict[str, str] = {}
    if mpi.kind == "openmpi":
        options = _open_mpi(config, mpi, variables, takes_turns)
    else:
        options, settings = _mpich(config, variables, own_address)
    count = config.world_size or sum(slots for _, slots in hosts)
    words = [mpi.mpirun, "-np", str(count)]
    if hosts:
        flag = "--host" if mpi.kind == "openmpi" else "-hosts"
        words += [flag, ",".join(f"{host.name}:{slots}" for host, slots in hosts)]
    extra = _split(config.extra_mpi_flags)
    argv = (*words, *options, *extra, *program)
    return MpiCommand(argv, dict(variables), settings)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise LaunchError(f"--extra-mpi-flags '{text}': {error}") from None


def _open_mpi(
    config: LaunchConfig,
    mpi: MpiImplementation,
    variables: Mapping[str, str],
    takes_turns: bool,
) -> list[str]:
    is_4 = mpi.version < (5,)
    words = ["--bind-to", config.bind_to]
    if is_4:
        words += ["--map-by", "slot"]
        words += ["--oversubscribe"] if config.oversubscribe or not config.hosts else []
    else:
        allow = ":OVERSUBSCRIBE" if config.oversubscribe or not config.hosts else ""
        words += ["--map-by", f"slot{allow}"]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    if takes_turns:
        # Without this, a waiting rank spins on the core that others need.
        words += ["--mca", "mpi_yield_when_idle", "1"]
    if config.network_interface is not None:
        which, names = _interfaces(config.network_interface)
        words += ["--mca", f"btl_tcp_if_{which}", names]
        if is_4:
            words += ["--mca", f"oob_tcp_if_{which}", names]
        else:
            words += ["--prtemca", f"prte_if_{which}", names]
    if config.use_infiniband:
        words += ["--mca", "pml", "ucx"]
    ssh = _ssh_options(config)
    if ssh:
        setting = ["--mca", "plm_rsh_args"] if is_4 else ["--prtemca", "plm_ssh_args"]
        words += [*setting, ssh]
    for name in sorted(variables):
        words += ["-x", name]
    return words


def _mpich(
    config: LaunchConfig, variables: Mapping[str, str], own_address: str | None
) -> tuple[list[str], dict[str, str]]:
    words: list[str] = ["-bind-to", config.bind_to]
    settings: dict[str, str] = {}
    if own_address is not None:
        words += ["-localhost", own_address]
    if config.network_interface is not None:
        which, names = _interfaces(config.network_interface)
        if which == "exclude" or "," in names or "/" in names:
            raise LaunchError(
                f"--network-interface '{config.network_interface}': MPICH takes the "
                "name of only one interface"
            )
        words += ["-iface", names]
    if config.use_infiniband:
        words += ["-genv", "MPIR_CVAR_CH4_NETMOD", "ucx"]
    ssh = _ssh_options(config)
    if ssh:
        settings["HYDRA_LAUNCHER_EXTRA_ARGS"] = ssh
    if variables:
        words += ["-genvlist", ",".join(sorted(variables))]
    return words, settings


def rails_of_all_hosts(config: LaunchConfig) -> dict[str, str]:
    """Return the variable by which NCCL takes the interfaces that the user named.

    All hosts get the same value, so it is empty if ``--network-interface`` names a
    network, and without ``--enable-net`` or ``--network-interface``.

    Raises:
        LaunchError: mpirun does not take ``--network-interface``.
    """
    if not config.enable_net or config.network_interface is None:
        return {}
    which, names = _interfaces(config.network_interface)
    if "/" in names or any(is_ip(name) for name in names.split(",")):
        return {}
    return {INTERFACES_NAME: f"{'^' if which == 'exclude' else ''}={names}"}


def _interfaces(text: str) -> tuple[str, str]:
    """Return ``include`` or ``exclude``, and the names or networks."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if any(letter in text for letter in "*?") or not words:
        raise LaunchError(
            f"--network-interface '{text}': with --launcher mpi, name interfaces or "
            "networks without * and ?"
        )
    if words[0].startswith("^"):
        return "exclude", ",".join(word.lstrip("^") for word in words)
    if any(word.startswith("^") for word in words):
        raise LaunchError(
            f"--network-interface '{text}': mpirun can include or exclude, but not both"
        )
    return "include", ",".join(words)


def _ssh_options(config: LaunchConfig) -> str:
    words: list[str] = []
    for flag, value in (
        ("-p", config.ssh_port),
        ("-i", config.ssh_identity_file),
        ("-F", config.ssh_config),
    ):
        words += [] if value is None else [flag, str(value)]
    return shlex.join(words)
