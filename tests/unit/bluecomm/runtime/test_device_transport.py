"""All ranks choose NCCL, or none does, and rank 0 says why."""

from __future__ import annotations

import dataclasses
import logging
import types

import pytest

from bluecomm.config import Config
from bluecomm.runtime import device_transport
from bluecomm.runtime.device_transport import (
    DeviceTransport,
    choose_device_transport,
    device_facts,
)
from bluecomm.runtime.layout import layout_of

ABLE = {"gpus": 2, "are_own": False, "nccl": "2.29.7", "problem": ""}


def record(rank: int, **differences: object) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        rank=rank, host="hostA", devices={**ABLE, **differences}
    )


def choose(
    *peers: types.SimpleNamespace, rank: int = 0, setting: str = "auto"
) -> DeviceTransport:
    config = dataclasses.replace(Config(), device_transport=setting)
    return choose_device_transport(config, rank, peers, layout_of(["A"] * len(peers)))


@pytest.mark.parametrize("setting", ["staged", "nccl"])
def test_a_setting_holds_whatever_the_ranks_have(setting, caplog):
    assert choose(record(0, gpus=0), record(1), setting=setting).path == setting
    assert not caplog.records


def test_ranks_that_can_all_use_nccl_do():
    assert choose(record(0), record(1)).path == "nccl"
    own = (record(rank, gpus=1, are_own=True) for rank in range(2))
    assert choose(*own).path == "nccl"


def test_ranks_without_gpus_need_no_warning(caplog):
    chosen = choose(record(0, gpus=0, nccl=""), record(1, gpus=0, nccl=""))
    assert chosen.path == "staged"
    assert not chosen.offers_nccl()
    assert not caplog.records


@pytest.mark.parametrize(
    ("differences", "reason"),
    [
        ({"gpus": 0}, "sees no GPU"),
        ({"gpus": 1}, "sees 1 GPU, and its machine has 2 ranks"),
        ({"nccl": "", "problem": "cannot use NCCL: none"}, "cannot use NCCL: none"),
        ({"nccl": "2.18.5"}, "has NCCL 2.18.5, and rank 0 has 2.29.7"),
    ],
)
def test_one_rank_that_cannot_use_nccl_keeps_all_from_it(differences, reason, caplog):
    caplog.set_level(logging.WARNING, "bluecomm")
    peers = record(0), record(1, **differences)
    assert not choose(*peers, rank=1).offers_nccl()
    chosen = choose(*peers)
    assert chosen.path == "staged"
    assert not caplog.records  # since no tensor has been on a GPU
    assert not chosen.offers_nccl()
    assert not chosen.offers_nccl()
    (warning,) = caplog.records
    assert f"because rank 1 on hostA {reason}" in warning.getMessage()


def test_unlike_versions_are_an_error_where_nccl_is_demanded():
    peers = record(0), record(1), record(2, nccl="2.18.5"), record(3, nccl="")
    chosen = choose(*peers, setting="nccl")
    assert chosen.path == "nccl"
    assert chosen.conflict.startswith(
        "rank 2 on hostA has NCCL 2.18.5, and rank 0 on hostA has NCCL 2.29.7; install "
    )
    assert choose(record(0, nccl=""), record(1), setting="nccl").conflict == ""


@pytest.fixture
def two_gpus(monkeypatch):
    runtime = types.SimpleNamespace(count=lambda: 2)
    monkeypatch.setattr(device_transport, "current_runtime", lambda: runtime)


def test_a_rank_tells_what_it_has(two_gpus, monkeypatch):
    library = types.SimpleNamespace(version="2.29.7")
    monkeypatch.setattr(device_transport, "nccl_library", lambda: library)
    assert device_facts(Config(), may_choose=True) == ABLE
    own = device_facts(Config(gpus_per_rank=2), may_choose=True)
    assert own == {**ABLE, "are_own": True}


def test_a_rank_tells_why_it_cannot_use_nccl(two_gpus, monkeypatch):
    def fail():
        raise RuntimeError("NCCL cannot be loaded")

    monkeypatch.setattr(device_transport, "nccl_library", fail)
    facts = device_facts(Config(), may_choose=True)
    assert facts["problem"] == "cannot use NCCL: NCCL cannot be loaded"
    shared = device_facts(Config(share_gpus=True), may_choose=True)
    assert "shares its GPU with other ranks" in shared["problem"]


@pytest.mark.parametrize(
    ("config", "may_choose"),
    [(Config(device_transport="staged"), True), (Config(), False)],
)
def test_nothing_is_asked_for_without_a_choice(config, may_choose, monkeypatch):
    monkeypatch.setattr(device_transport, "current_runtime", lambda: None)
    assert device_facts(config, may_choose=may_choose)["gpus"] == 0
