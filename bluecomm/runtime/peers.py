"""Exchanges the records of all ranks at rendezvous, and checks that they agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bluecomm.config import Config
from bluecomm.errors import MismatchError
from bluecomm.runtime.device_transport import DeviceFacts
from bluecomm.runtime.rendezvous.bootstrap_exchange import check_agreement, shared_facts
from bluecomm.runtime.rendezvous.rendezvous import Rendezvous


@dataclasses.dataclass(frozen=True)
class PeerRecord:
    """Facts about one rank, which it sends to all others at rendezvous."""

    rank: int
    host: str
    machine: str
    pid: int
    offers: dict[str, str]
    ranks_per_machine: int | None
    topology: str
    encryption: str
    device_transport: str
    devices: DeviceFacts


def meet_peers(
    rendezvous: Rendezvous, config: Config, mine: PeerRecord
) -> list[PeerRecord]:
    """Exchange records with all ranks and return them by rank.

    Raises:
        CommunicationTimeout: Some ranks did not take part in time.
        MismatchError: The ranks have different versions of bluecomm, or were started
            with different settings.
    """
    facts = shared_facts(rendezvous.assignment.size)
    told = {"facts": facts, "record": dataclasses.asdict(mine)}
    answers = rendezvous.exchange(told, config.start_timeout_s)
    # Checked first, because the record of another version may have other fields.
    check_agreement(mine.rank, facts, [answer["facts"] for answer in answers])
    peers = [PeerRecord(**answer["record"]) for answer in answers]
    _check_agreement(
        mine, peers, "topology", "the ranks start with different topologies"
    )
    _check_agreement(
        mine, peers, "ranks_per_machine", "BLUECOMM_RANKS_PER_MACHINE differs"
    )
    _check_agreement(mine, peers, "encryption", "BLUECOMM_ENCRYPTION differs")
    _check_agreement(
        mine, peers, "device_transport", "BLUECOMM_DEVICE_TRANSPORT differs"
    )
    return peers


def _check_agreement(
    mine: PeerRecord, peers: Sequence[PeerRecord], field: str, what: str
) -> None:
    expected = getattr(mine, field)
    others = [peer.rank for peer in peers if getattr(peer, field) != expected]
    if others:
        got = getattr(peers[others[0]], field)
        raise MismatchError.describe(
            f"{what}: rank {others[0]} disagrees with rank {mine.rank}",
            operation="init",
            rank=mine.rank,
            peers=others,
            expected=str(expected),
            got=str(got),
            remedy="Start all ranks with the same value.",
        )
