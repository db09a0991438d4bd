"""Messages between the ranks that keep a ledger; see docs/dynamic-partition.md."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeAlias

from bluecomm.data.dynamic.exchange import LedgerReply, LedgerRequest
from bluecomm.data.dynamic.ledger import LedgerState


@dataclasses.dataclass(frozen=True)
class Copy:
    """A state of a ledger.

    Attributes:
        version: Number of changes since its beginning.
        state: The state.
    """

    version: int
    state: LedgerState


@dataclasses.dataclass(frozen=True)
class LedgerCall:
    """A rank asks the server.

    Attributes:
        ledger: Name of the ledger.
        request: The request.
        begin: The newest state that the rank knows, in its first call and in repeats.
    """

    ledger: str
    request: LedgerRequest
    begin: Copy | None


@dataclasses.dataclass(frozen=True)
class Reply:
    """The server answers a call, after the backup has got the copy.

    Attributes:
        view: The server's view.
        ledger: Name of the ledger.
        number: Number of the request.
        reply: The answer.
        copy: The state after it.
    """

    view: int
    ledger: str
    number: int
    reply: LedgerReply
    copy: Copy


@dataclasses.dataclass(frozen=True)
class Backup:
    """The server gives a copy to the backup, which confirms it."""

    view: int
    ledger: str
    copy: Copy


@dataclasses.dataclass(frozen=True)
class Confirm:
    """The backup has a copy of this version."""

    ledger: str
    version: int


@dataclasses.dataclass(frozen=True)
class Over:
    """The server sends everybody a ledger whose records are all done."""

    view: int
    ledger: str
    copy: Copy


@dataclasses.dataclass(frozen=True)
class Collect:
    """A new server asks for all copies, and tells its view."""

    view: int


@dataclasses.dataclass(frozen=True)
class Collected:
    """A rank gives the new server all copies that it has, by the ledgers' names."""

    copies: dict[str, Copy]


Message: TypeAlias = LedgerCall | Reply | Backup | Confirm | Over | Collect | Collected

_KINDS: dict[str, type[Message]] = {
    one.__name__: one
    for one in (LedgerCall, Reply, Backup, Confirm, Over, Collect, Collected)
}


def encode(message: Message) -> bytes:
    """Return a message as bytes."""
    text = json.dumps(
        [type(message).__name__, vars(message)], separators=(",", ":"), default=vars
    )
    return text.encode()


def decode(data: bytes) -> Message:
    """Return the message that ``encode`` has turned into bytes."""
    kind, fields = json.loads(data)
    for name in ("begin", "copy"):
        if fields.get(name) is not None:
            fields[name] = Copy(**fields[name])
    if "copies" in fields:
        copies: dict[str, Any] = fields["copies"]
        fields["copies"] = {name: Copy(**one) for name, one in copies.items()}
    return _KINDS[kind](**fields)
