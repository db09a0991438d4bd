"""Ranks must agree on encryption, and messages over MPI are not encrypted."""

from __future__ import annotations

import types

import pytest

from bluecomm.config import Config
from bluecomm.errors import BluecommError, MismatchError
from bluecomm.runtime.engine_start import mpi_session
from bluecomm.runtime.peers import PeerRecord, meet_peers
from bluecomm.runtime.rendezvous.rendezvous import SoloRendezvous


class TwoRanks(SoloRendezvous):
    """Answers with this rank's record, and with that of a rank 1 without encryption."""

    def exchange(self, record, timeout_s):
        other = {**record["record"], "rank": 1, "encryption": "off"}
        return [record, {**record, "record": other}]


def test_ranks_that_disagree_are_an_error_that_names_both_settings():
    mine = PeerRecord(
        rank=0,
        host="here",
        machine="m",
        pid=1,
        offers={},
        ranks_per_machine=None,
        topology="",
        encryption="full",
        device_transport="staged",
        devices={"gpus": 0, "are_own": False, "nccl": "", "problem": ""},
    )
    rendezvous = TwoRanks()
    try:
        with pytest.raises(MismatchError) as raised:
            meet_peers(rendezvous, Config(), mine)
    finally:
        rendezvous.close()
    assert (
        "BLUECOMM_ENCRYPTION differs: rank 1 disagrees with rank 0 (expected full, "
        "got off)"
    ) in str(raised.value)


def session(**settings: str) -> object:
    assignment = types.SimpleNamespace(rank=3, size=4)
    rendezvous = types.SimpleNamespace(mpi="a session", assignment=assignment)
    return mpi_session(Config(**settings), rendezvous)


def test_encryption_refuses_mpi_and_auto_does_not_choose_it():
    for mode in ("auth", "full"):
        assert session(encryption=mode) is None
        with pytest.raises(
            BluecommError,
            match=f"init on rank 3: BLUECOMM_ENCRYPTION is {mode}.*set "
            "BLUECOMM_TRANSPORT to auto or tcp",
        ):
            session(encryption=mode, transport="mpi")
    assert session() == "a session"
