"""What a rank finds out about its own machine where no agent tells it."""

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
    """Return a text that is equal on the ranks that share this machine.

    Made of the kernel's boot id, the host name and the network namespace: containers
    share the first, and those on the host's network the last.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    network = os.stat("/proc/self/ns/net").st_ino
    text = f"{boot} {socket.gethostname()} {network}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def data_addresses(pattern: str | None, towards: str) -> tuple[str, ...]:
    """Return this host's addresses for data, best first.

    Args:
        pattern: Which interfaces may be used, as ``--network-interface`` takes it.
        towards: A host of the job; the address that packets to it come from is first.

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
    """Return when a process of this machine started, in ticks; None: it has ended.

    With its id it names a process for good, as ids are given again.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
