"""Finds the cores, GPUs and addresses of this machine, without starting a probe."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from bfrun.addresses import Address, choose_interfaces
from bfrun.config import LaunchConfig
from bfrun.plan import HostFacts
from bfrun.probe import interface_addresses, numa_domains, visible_gpus


def local_facts() -> HostFacts:
    """Return the cores and GPUs that ranks may use on this machine."""
    cpus = sorted(os.sched_getaffinity(0))
    domains = tuple(tuple(domain) for domain in numa_domains(cpus))
    return HostFacts(tuple(cpus), domains, tuple(visible_gpus(os.environ)))


def local_addresses(config: LaunchConfig) -> tuple[str, ...]:
    """Return the data addresses of this machine; see ``allowed_addresses``."""
    return allowed_addresses(config, interface_addresses())


def allowed_addresses(
    config: LaunchConfig, found: Iterable[Sequence[str]]
) -> tuple[str, ...]:
    """Return the addresses at which hosts that come later may reach ranks.

    Args:
        config: Names the interfaces that may be used.
        found: The interface and the text of each address of the machine.

    Returns:
        The addresses, best first. There is none with ``--launcher local``, under which
        no other machine can come.
    """
    if config.launcher == "local":
        return ()
    known = [Address(interface, ip) for interface, ip in found]
    chosen = choose_interfaces(known, config.network_interface)
    return tuple(address.ip for address in chosen)
