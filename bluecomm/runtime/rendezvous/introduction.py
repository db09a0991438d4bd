"""What ranks without an agent tell one another first, and what follows from it."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from bluecomm import _version
from bluecomm.errors import MismatchError
from bluecomm.runtime.layout import layout_of
from bluecomm.runtime.rendezvous.host import data_addresses, machine_identity
from bluecomm.runtime.rendezvous.rendezvous import Place

_SHARED = (("size", "the world size"), ("version", "bluecomm"))


def shared_facts(size: int) -> dict[str, Any]:
    """Return what all ranks must have in common, for ``check_agreement``."""
    return {"size": size, "version": _version.__version__}


def check_agreement(
    rank: int, mine: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]
) -> None:
    """Demand that all ranks have the world size and version of this one.

    Args:
        rank: This rank.
        mine: Its answer.
        answers: The ranks' answers, in their order, each with ``shared_facts``.

    Raises:
        MismatchError: Some have not.
    """
    for what, label in _SHARED:
        others = [i for i, it in enumerate(answers) if it[what] != mine[what]]
        if others:
            raise MismatchError.describe(
                f"{label} of rank {others[0]} is another one",
                operation="init",
                rank=rank,
                peers=others,
                expected=str(mine[what]),
                got=str(answers[others[0]][what]),
                remedy="All ranks must start with the same.",
            )


def introduce(rank: int, size: int) -> dict[str, Any]:
    """Return what ``place_of`` needs of a rank; rank 0 draws the secret."""
    return {
        **shared_facts(size),
        "machine": machine_identity(),
        "host": socket.gethostname(),
        "job": secrets.token_hex(8) if rank == 0 else "",
        "secret": secrets.token_hex(32) if rank == 0 else "",
    }


def place_of(
    rank: int,
    answers: Sequence[Mapping[str, Any]],
    *,
    socket_dir: str,
    network_interface: str | None,
    head: str,
    source: str,
) -> Place:
    """Return a rank's place among those that have introduced themselves.

    Args:
        rank: This rank.
        answers: What ``introduce`` returned on each rank, in their order.
        socket_dir: Private to this user.
        network_interface: Which interfaces may be used.
        head: A host of the job.
        source: Who started the ranks.

    Raises:
        BluecommError: ``network_interface`` allows no address.
    """
    layout = layout_of([answer["machine"] for answer in answers])
    return Place(
        rank=rank,
        size=len(answers),
        local_rank=layout.local_rank(rank),
        local_size=layout.local_size(rank),
        machine_rank=layout.machine_of[rank],
        machine_size=layout.machine_size,
        job=answers[0]["job"],
        epoch=0,
        secret=bytes.fromhex(answers[0]["secret"]),
        host=answers[rank]["host"],
        machine=answers[rank]["machine"],
        socket_dir=socket_dir,
        addresses=data_addresses(network_interface, head),
        source=source,
    )
