"""Turns settings into an mpirun command, or refuses what needs agents."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from bfrun.addresses import Address, choose_interfaces, source_address
from bfrun.agent.ports import free_port
from bfrun.allocation import is_in_allocation, read_allocation
from bfrun.config import LaunchConfig
from bfrun.env import chosen_environment
from bfrun.errors import LaunchError
from bfrun.hosts import Host, is_local
from bfrun.mpi.command import MpiCommand, make_command, rails_of_all_hosts
from bfrun.mpi.implementation import find_implementation
from bfrun.output.streams import remark
from bfrun.probe import interface_addresses
from bfrun.wording import count

# The program between mpirun and a rank, which travels on the command line.
FILES = (
    "errors.py",
    "agent/__init__.py",
    "agent/kernel.py",
    "agent/procs.py",
    "agent/mpi_rank.py",
    "gpu_shares.py",
    "probe.py",
    "wording.py",
)
_PROGRAM = (
    "import sys,os,base64;f=os.memfd_create('bfrun');"
    "os.write(f,base64.b64decode(sys.argv[2]));"
    "sys.path.insert(0,'/proc/self/fd/%d'%f);"
    "from bfrun.agent.mpi_rank import main;"
    "main(sys.argv[1],int(sys.argv[3]),sys.argv[4:])"
)


def plan_mpi(
    config: LaunchConfig, environ: Mapping[str, str], marker: str, archive: str
) -> MpiCommand:
    """Return the mpirun command of a job.

    Args:
        config: The user's settings.
        environ: Environment of bfrun.
        marker: Text that precedes the report of a rank.
        archive: Code of the reporting program, in base64.
    """
    _refuse_what_needs_agents(config)
    mpi = find_implementation(config.prefix, environ)
    if config.verbose:
        remark(f"bfrun: {mpi}")
    hosts = _hosts(config, environ)
    python = config.python or sys.executable
    wrapper = [python, "-I", "-S", "-c", _PROGRAM, marker, archive]
    wrapper.append(str(config.gpus_per_rank or 0))
    variables = {
        **rails_of_all_hosts(config),
        **chosen_environment(config, environ),
        "BLUECOMM_START_TIMEOUT_S": str(config.start_timeout_s),
        "BLUECOMM_LINK_TIMEOUT_S": str(config.link_timeout_s),
    }
    if config.use_infiniband:
        _refuse_unencrypted_infiniband(variables)
    variables.setdefault("MASTER_ADDR", _head_address(hosts, config.network_interface))
    variables.setdefault("MASTER_PORT", str(free_port()))
    if config.ranks_per_machine is not None:
        variables["BLUECOMM_RANKS_PER_MACHINE"] = str(config.ranks_per_machine)
    return make_command(
        config,
        hosts,
        mpi,
        variables,
        [*wrapper, *config.command],
        takes_turns=_takes_turns(config, hosts),
        own_address=_own_address(hosts),
    )


def _refuse_what_needs_agents(config: LaunchConfig) -> None:
    own = "pass mpirun's own option in --extra-mpi-flags"
    folder = "start sh -c 'exec COMMAND >DIR/$RANK.out 2>DIR/$RANK.err'"
    timeline = "each rank writes a timeline of its own with BLUECOMM_TIMELINE=PREFIX"
    for given, option, remedy in (
        (config.check, "--check", "leave --launcher out for the check"),
        (config.output_dir, "--output-dir", folder),
        (config.timeline_filename, "--timeline-filename", timeline),
        (config.only_rank, "--only-rank", own),
        (config.prefix_timestamp, "--prefix-timestamp", own),
        (config.stdin, "--stdin", own),
    ):
        if given:
            raise LaunchError(
                f"{option} needs bfrun's agents, but with --launcher mpi, mpirun "
                f"starts the ranks and carries their output; {remedy}"
            )


def _refuse_unencrypted_infiniband(variables: Mapping[str, str]) -> None:
    mode = variables.get("BLUECOMM_ENCRYPTION", "off")
    if mode != "off":
        raise LaunchError(
            f"--use-infiniband carries data over MPI, which encryption ({mode}) does "
            "not cover; leave out one of the two"
        )


def _hosts(config: LaunchConfig, environ: Mapping[str, str]) -> list[tuple[Host, int]]:
    """Return the hosts with their slots, or none if this machine runs all ranks."""
    hosts: Sequence[Host] = config.hosts
    cores: Mapping[Host, int] = {}
    if not hosts and is_in_allocation(environ):
        allocation = read_allocation(environ)
        hosts, cores = allocation.hosts, allocation.cpus
    if not hosts and config.world_size is None:
        raise LaunchError(
            "the number of ranks is not known; give -np N, or hosts with -H "
            "host:slots,... or --hostfile F"
        )
    found = []
    for host in hosts:
        slots = host.slots or cores.get(host)
        if slots is None:
            raise LaunchError(
                f"--launcher mpi: host '{host}' is given without slots, and bfrun does "
                f"not ask hosts if mpirun starts the ranks; write {host}:SLOTS"
            )
        found.append((host, slots))
    total = sum(slots for _, slots in found)
    wanted = config.world_size or total
    if found and wanted > total and not config.oversubscribe:
        raise LaunchError(
            f"-np {wanted}: the hosts have {count(total, 'slot')}; lower -np, give "
            "more slots, or allow more ranks than slots with --oversubscribe"
        )
    return found


def _takes_turns(config: LaunchConfig, hosts: Sequence[tuple[Host, int]]) -> bool:
    if config.oversubscribe:
        return True
    own = [address for _, address in interface_addresses()]
    here = [slots for host, slots in hosts if is_local(host, own)]
    ranks = sum(here) if hosts else config.world_size or 0
    return ranks > len(os.sched_getaffinity(0))


def _own_address(hosts: Sequence[tuple[Host, int]]) -> str | None:
    """Return the address at which the other hosts reach this one."""
    own = [address for _, address in interface_addresses()]
    remote = [host for host, _ in hosts if not is_local(host, own)]
    return source_address(remote[0].name) if remote else None


def _head_address(hosts: Sequence[tuple[Host, int]], pattern: str | None) -> str:
    """Return the address at which the other ranks reach rank 0."""
    if not hosts:
        return "127.0.0.1"
    own = [Address(*entry) for entry in interface_addresses()]
    if len(hosts) > 1 and is_local(hosts[0][0], [address.ip for address in own]):
        allowed = choose_interfaces(own, pattern)
        return allowed[0].ip if allowed else hosts[0][0].name
    return hosts[0][0].name
