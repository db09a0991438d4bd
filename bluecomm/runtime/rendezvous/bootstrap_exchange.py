"""Bootstrap exchange: the first records that ranks without an agent send each other."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from bluecomm import _version
from bluecomm.errors import MismatchError
from bluecomm.runtime.layout import layout_of
from bluecomm.runtime.rendezvous.host import data_addresses, machine_identity
from bluecomm.runtime.rendezvous.rendezvous import Assignment

_SHARED = (("size", "the world size"), ("version", "bluecomm"))


def shared_facts(size: int) -> dict[str, Any]:
    """Return the facts on which all ranks must agree, for ``check_agreement``."""
    return {"size": size, "version": _version.__version__}


def check_agreement(
    rank: int, mine: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]
) -> None:
    """Check that all ranks have this rank's world size and version of bluecomm.

    Args:
        rank: This rank.
        mine: Its record.
        answers: The records of all ranks, by rank, each with ``shared_facts``.

    Raises:
        MismatchError: A rank differs.
    """
    for what, label in _SHARED:
        others = [i for i, it in enumerate(answers) if it[what] != mine[what]]
        if others:
            raise MismatchError.describe(
                f"{label} of rank {others[0]} differs",
                operation="init",
                rank=rank,
                peers=others,
                expected=str(mine[what]),
                got=str(answers[others[0]][what]),
                remedy="Start all ranks with the same world size and version.",
            )


def host_facts(size: int) -> dict[str, Any]:
    """Return ``shared_facts`` and the machine and host of this process."""
    return {
        **shared_facts(size),
        "machine": machine_identity(),
        "host": socket.gethostname(),
    }


def bootstrap_record(rank: int, size: int) -> dict[str, Any]:
    """Return ``host_facts`` of this rank; rank 0 adds the job's name and secret."""
    return {
        **host_facts(size),
        "job": secrets.token_hex(8) if rank == 0 else "",
        "secret": secrets.token_hex(32) if rank == 0 else "",
    }


def assignment_from(
    rank: int,
    answers: Sequence[Mapping[str, Any]],
    *,
    job: str,
    secret: bytes,
    socket_dir: str,
    network_interface: str | None,
    head: str,
    source: str,
) -> Assignment:
    """Derive a rank's assignment from the records of all ranks.

    Args:
        rank: This rank.
        answers: The result of ``host_facts`` on each rank, by rank.
        job: Name of this start of the job, the same on all ranks.
        secret: Secret of the job.
        socket_dir: A folder that is private to this user.
        network_interface: Pattern of the interfaces that may be used.
        head: A host of the job; the route to it decides which address is first.
        source: The launcher of the ranks, for texts.

    Raises:
        BluecommError: ``network_interface`` allows no address of this host.
    """
    layout = layout_of([answer["machine"] for answer in answers])
    return Assignment(
        rank=rank,
        size=len(answers),
        local_rank=layout.local_rank(rank),
        local_size=layout.local_size(rank),
        machine_rank=layout.machine_of[rank],
        machine_size=layout.machine_size,
        job=job,
        epoch=0,
        secret=secret,
        host=answers[rank]["host"],
        machine=answers[rank]["machine"],
        socket_dir=socket_dir,
        addresses=data_addresses(network_interface, head),
        source=source,
    )
