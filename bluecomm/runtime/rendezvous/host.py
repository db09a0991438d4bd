"""Facts about this machine, for ranks without an agent."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

from bfrun.addresses import Address, choose_interfaces, source_address
from bfrun.errors import LaunchError
from bfrun.probe import interface_addresses
from bluecomm.errors import BluecommError


def machine_identity() -> str:
    """Return a text that is equal on all ranks of this machine, and only on them.

    It combines the kernel's boot id, the host name and the network namespace.
    Containers of a host share the first; those on its network share the last.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    network = os.stat("/proc/self/ns/net").st_ino
    text = f"{boot} {socket.gethostname()} {network}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def data_addresses(pattern: str | None, towards: str) -> tuple[str, ...]:
    """Return this host's addresses for data, best first.

    Args:
        pattern: Interfaces that may be used, in the syntax of ``--network-interface``.
        towards: A host of the job. The source address of packets to it is first.

    Raises:
        BluecommError: ``pattern`` allows none of the addresses.
    """
    everything = [Address(*entry) for entry in interface_addresses()]
    try:
        allowed = [address.ip for address in choose_interfaces(everything, pattern)]
    except LaunchError as error:
        raise BluecommError(f"init: {error}", operation="init") from None
    if pattern is not None and not allowed:
        had = ", ".join(map(str, everything)) or "none"
        raise BluecommError(
            f"init: BLUECOMM_NETWORK_INTERFACE '{pattern}' allows no address of "
            f"{socket.gethostname()}, which has {had}",
            operation="init",
        )
    route = source_address(towards)
    allowed.sort(key=lambda ip: ip != route)
    return tuple(allowed) or ("127.0.0.1",)


def process_start(pid: int) -> str | None:
    """Return the start time of a process in ticks, or None if it has ended.

    Process ids are reused; id and start time together identify a process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
