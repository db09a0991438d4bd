"""Two network namespaces and links between them with configurable rates."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.cluster import list_namespaces, run


@dataclass(frozen=True)
class Paths:
    """Namespaces ``here`` and ``there``; link ``k`` has one address at each end."""

    here: str
    there: str
    links: int

    @property
    def here_addresses(self) -> list[str]:
        """Addresses of ``here``, by link."""
        return [f"10.77.{link}.1" for link in range(self.links)]

    @property
    def there_addresses(self) -> list[str]:
        """Addresses of ``there``, by link."""
        return [f"10.77.{link}.2" for link in range(self.links)]

    def shape(self, link: int, mbit: int) -> None:
        """Limit both directions of a link."""
        for namespace in (self.here, self.there):
            device = ["dev", f"eth{link}", "root"]
            limit = ["rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms"]
            run("tc", "-n", namespace, "qdisc", "add", *device, "tbf", *limit)

    def sort_by_port(self, mbits: tuple[int, int]) -> None:
        """Let one bit of the connecting port choose between two limits on link 0."""
        sort_by_port(self.here, mbits, offset=20)
        sort_by_port(self.there, mbits, offset=22)


def sort_by_port(namespace: str, mbits: tuple[int, int], *, offset: int) -> None:
    """Give eth0 two classes; a bit of the port at ``offset`` of a packet chooses.

    Linux gives connections even ports, so the second-lowest bit decides.

    Args:
        namespace: Where eth0 is.
        mbits: Limits of the classes 1:1 and 1:2, in Mbit/s.
        offset: 20 for the source port, 22 for the destination port.
    """
    _make_classes(namespace, mbits)
    match = ["match", "u16", "0x0002", "0x0002", "at", str(offset)]
    _send_to_second_class(namespace, match)


def sort_by_address(namespace: str, mbits: tuple[int, int], *seconds: str) -> None:
    """Give eth0 two classes; packets from or to ``seconds`` use the second."""
    _make_classes(namespace, mbits)
    for address in seconds:
        for end in ("src", "dst"):
            _send_to_second_class(namespace, ["match", "ip", end, f"{address}/32"])


def _make_classes(namespace: str, mbits: tuple[int, int]) -> None:
    tc = ["tc", "-n", namespace]
    root = ["dev", "eth0", "root", "handle", "1:", "htb", "default", "1"]
    run(*tc, "qdisc", "add", *root)
    for number, mbit in enumerate(mbits, start=1):
        each = ["parent", "1:", "classid", f"1:{number}"]
        limit = ["rate", f"{mbit}mbit", "quantum", "1514"]
        run(*tc, "class", "add", "dev", "eth0", *each, "htb", *limit)


def _send_to_second_class(namespace: str, match: list[str]) -> None:
    where = ["dev", "eth0", "parent", "1:", "protocol", "ip", "prio", "1"]
    add = ["tc", "-n", namespace, "filter", "add", *where]
    run(*add, "u32", *match, "flowid", "1:2")


@contextlib.contextmanager
def make_paths(links: int = 1) -> Iterator[Paths]:
    """Create both namespaces with ``links`` links, and remove them at the end."""
    paths = Paths(f"bp{os.getpid()}a", f"bp{os.getpid()}b", links)
    try:
        for namespace in (paths.here, paths.there):
            run("ip", "netns", "add", namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")
        for link in range(links):
            _connect(paths, link)
        yield paths
    finally:
        # An exception may have come before or after a namespace was made.
        for name in {paths.here, paths.there}.intersection(list_namespaces()):
            run("ip", "netns", "del", name)


def _connect(paths: Paths, link: int) -> None:
    device = f"eth{link}"
    peer = ["peer", "name", device, "netns", paths.there]
    add = ["link", "add", device, "netns", paths.here, "type", "veth"]
    run("ip", *add, *peer)
    ends = [
        (paths.here, paths.here_addresses[link]),
        (paths.there, paths.there_addresses[link]),
    ]
    for namespace, address in ends:
        run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", device)
        run("ip", "-n", namespace, "link", "set", device, "up")
