"""Chooses the addresses of a host that carry data between hosts."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bfrun.errors import LaunchError

# Interfaces of containers and virtual machines, with the same address on many hosts.
_VIRTUAL = ("docker*", "br-*", "virbr*", "cni*", "flannel*", "cali*", "lxc*", "podman*")


@dataclass(frozen=True)
class Address:
    """An address and the interface that has it."""

    interface: str
    ip: str

    def __str__(self) -> str:
        return f"{self.ip} ({self.interface})"


def choose_interfaces(
    addresses: Sequence[Address], pattern: str | None
) -> tuple[Address, ...]:
    """Return the addresses that ``--network-interface`` allows, best first.

    Args:
        addresses: All addresses of a host, without loopback and link-local ones.
        pattern: Interface names, globs or CIDR networks, separated by commas. An
            entry that begins with ``^`` excludes; if the first one does, all exclude.
            None allows all addresses, and puts those of containers last.

    Raises:
        LaunchError: An entry is not a name, a glob or a network.
    """
    if pattern is None:
        return tuple(sorted(addresses, key=_is_virtual))
    words = [word.strip() for word in pattern.split(",") if word.strip()]
    if not words:
        raise LaunchError(f"--network-interface '{pattern}' names no interface")
    all_exclude = words[0].startswith("^")
    exclude = [word.lstrip("^") for word in words if all_exclude or word[0] == "^"]
    include = [] if all_exclude else [word for word in words if word[0] != "^"]
    return tuple(
        address
        for address in addresses
        if (not include or any(_matches(word, address) for word in include))
        and not any(_matches(word, address) for word in exclude)
    )


def source_address(host: str) -> str | None:
    """Return this machine's address on the route to ``host``. Sends nothing.

    Returns:
        The address, or None if the name cannot be resolved or there is no route.
    """
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _is_virtual(address: Address) -> bool:
    return any(fnmatchcase(address.interface, glob) for glob in _VIRTUAL)


def _matches(word: str, address: Address) -> bool:
    if "/" in word or is_ip(word):
        try:
            network = ipaddress.ip_network(word, strict=False)
        except ValueError as error:
            raise LaunchError(
                f"--network-interface: '{word}' is not a network: {error}"
            ) from error
        return ipaddress.ip_address(address.ip) in network
    return fnmatchcase(address.interface, word)


def is_ip(word: str) -> bool:
    """Return whether a word is an IP address."""
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


# For each address, the hosts that did not reach it, and why.
Unreached = Mapping[Address, Mapping[str, str]]


def reachable_addresses(
    host: str, candidates: Sequence[Address], unreached: Unreached
) -> tuple[str, ...]:
    """Return the addresses of ``host`` that every other host has reached.

    Args:
        host: Name of the host, for errors.
        candidates: Its allowed addresses, best first.
        unreached: For each address, the hosts that did not reach it, and why.

    Raises:
        LaunchError: There is no such address. The text names, for each address, the
            hosts that failed to reach it, and why.
    """
    good = tuple(address.ip for address in candidates if not unreached.get(address))
    if good:
        return good
    tried = "; ".join(
        f"{address} not reached from {_describe_hosts(unreached[address])}"
        for address in candidates
    )
    raise LaunchError(
        f"host '{host}' has no address that every other host can reach: "
        f"{tried or '--network-interface allows none of its addresses'}; open the "
        "firewall between the hosts, or choose interfaces with --network-interface"
    )


def _describe_hosts(reasons: Mapping[str, str]) -> str:
    return ", ".join(f"{host} ({reason})" for host, reason in reasons.items())
