"""Parses hosts as users write them: ``-H host1:4,[::1]:2`` and hostfiles."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from bfrun.errors import LaunchError

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?\Z")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\$?\Z")
_FORM = "host, host:slots, user@host:slots or [IPv6 address]:slots"


@dataclass(frozen=True)
class Host:
    """One host of a job.

    Attributes:
        name: Name or address as the user gave it, without IPv6 brackets. It may be a
            name of ``~/.ssh/config``.
        slots: Ranks that it takes; None means one per GPU, or per core without GPUs.
        user: Login name of ``user@host``; None means the one in the SSH settings.
    """

    name: str
    slots: int | None = None
    user: str | None = None

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        user = f"{self.user}@" if self.user else ""
        slots = "" if self.slots is None else f":{self.slots}"
        return f"{user}{name}{slots}"


LOCALHOST = Host("localhost")


def parse_host(text: str) -> Host:
    """Return the host that ``text`` names.

    Args:
        text: ``host``, ``host:slots``, ``user@host:slots`` or ``[IPv6]:slots``.

    Raises:
        LaunchError: The text is malformed, or the slots are less than 1.
    """
    user, at, rest = text.strip().rpartition("@")
    if at and not _USER.match(user):
        raise LaunchError(
            f"host '{text}': '{user}' is not a login name; expected {_FORM}"
        )
    name, slots = _split_slots(text, rest)
    return Host(name, slots, user or None)


def _split_slots(text: str, rest: str) -> tuple[str, int | None]:
    if rest.startswith("["):
        name, bracket, tail = rest[1:].partition("]")
        if not bracket or not _is_ipv6(name):
            raise LaunchError(f"host '{text}': the brackets hold no IPv6 address")
    else:
        name, colon, digits = rest.partition(":")
        tail = colon + digits
        if _is_ipv6(rest):
            raise LaunchError(
                f"host '{text}': write an IPv6 address in brackets: [{rest}] or "
                f"[{rest}]:4"
            )
        if not _NAME.match(name):
            raise LaunchError(f"host '{text}': expected {_FORM}")
    if not tail:
        return name, None
    if not tail.startswith(":"):
        raise LaunchError(f"host '{text}': expected {_FORM}")
    return name, _parse_slots(text, tail[1:])


def _is_ipv6(name: str) -> bool:
    try:
        ipaddress.IPv6Address(name)
    except ValueError:
        return False
    return True


def _parse_slots(text: str, digits: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", digits) or int(digits) < 1:
        raise LaunchError(
            f"host '{text}': slots must be a whole number of at least 1, got '{digits}'"
        )
    return int(digits)


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts of a comma-separated list, as given to ``-H``.

    A host that is named several times appears once, with the sum of its slots.

    Raises:
        LaunchError: The list is empty or one entry has a wrong form.
    """
    entries = [entry for entry in text.split(",") if entry.strip()]
    if not entries:
        raise LaunchError(f"-H '{text}' names no host; expected {_FORM}")
    return merge_hosts(parse_host(entry) for entry in entries)


def parse_hostfile(path: str | Path) -> tuple[Host, ...]:
    """Return the hosts of a file with one ``host slots=4`` or ``host:4`` per line.

    Skips empty lines and comments, which begin with ``#``. A host on several lines
    without slots (as batch systems write them) has one slot per line.

    Raises:
        LaunchError: The file cannot be read, names no host, or a line has a wrong
            form. The message names file and line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"hostfile '{path}' cannot be read: {error}") from error
    hosts = parse_host_lines(lines, f"hostfile '{path}'")
    if not hosts:
        raise LaunchError(f"hostfile '{path}' names no host")
    return hosts


def parse_host_lines(lines: Iterable[str], source: str) -> tuple[Host, ...]:
    """Return the hosts of some lines, as in a hostfile; there may be none.

    Args:
        lines: The lines.
        source: Where they come from, for errors.

    Raises:
        LaunchError: A line has a wrong form. The message names source and line.
    """
    hosts = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            hosts.append(_parse_line(words))
        except LaunchError as error:
            raise LaunchError(f"{source}, line {number}: {error}") from None
    return merge_hosts(hosts)


def _parse_line(words: list[str]) -> Host:
    host = parse_host(words[0])
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key != "slots":
            raise LaunchError(f"unknown word '{word}'; expected 'host slots=N'")
        if host.slots is not None:
            raise LaunchError(f"host '{host.name}': slots are given twice")
        host = replace(host, slots=_parse_slots(host.name, value))
    return host


def merge_hosts(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Return the hosts in order of first mention, with slots of equal ones summed."""
    merged: dict[tuple[str | None, str], Host] = {}
    for host in hosts:
        key = (host.user, host.name)
        seen = merged.get(key)
        if seen is not None:
            host = replace(host, slots=(seen.slots or 1) + (host.slots or 1))
        merged[key] = host
    return tuple(merged.values())


def is_local(host: Host, own_addresses: Iterable[str]) -> bool:
    """Return whether ``host`` is this machine, so that no SSH is needed.

    Args:
        host: The host; it is never local if it has a login name.
        own_addresses: Addresses of this machine's interfaces.
    """
    if host.user is not None:
        return False
    if host.name in ("localhost", socket.gethostname()):
        return True
    own = set(own_addresses)
    try:
        found = socket.getaddrinfo(host.name, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    addresses = {str(entry[4][0]).partition("%")[0] for entry in found}
    return any(
        ipaddress.ip_address(address).is_loopback or address in own
        for address in addresses
    )
