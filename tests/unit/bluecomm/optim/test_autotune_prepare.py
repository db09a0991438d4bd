"""The choice of optimizers that are tuned, and of their settings."""

import dataclasses
import logging
import sys
from types import SimpleNamespace

import pytest
import torch

import bluecomm as bf
from bluecomm.config import Config
from bluecomm.optim.autotune.prepare import prepare_tuning
from bluecomm.optim.autotune.sending import Sending
from bluecomm.optim.autotune.tuning import options_of
from bluecomm.optim.options import CommonOptions
from bluecomm.optim.registry import get_algorithm

MIB = 1 << 20
OPTIONS = CommonOptions(bucket_bytes=4 * MIB)
# 4 MiB and a little more.
NAMED = [("weight", torch.zeros(1024, 1024)), ("bias", torch.zeros(1024))]


class World:
    def __init__(self):
        self.limits = []

    def limit_sending(self, streams, chunk_nbytes):
        self.limits.append((streams, chunk_nbytes))


def world_of(
    rank=0,
    size=4,
    survives=False,
    respawns=False,
    machines=1,
    link="shm",
    is_world=True,
    **settings,
):
    """Return what the tuning asks of a communicator."""
    world = World()
    world.config = Config(**settings)
    world.members = SimpleNamespace(survives_losses=survives)
    world.assignment = SimpleNamespace(respawns=respawns)
    world.transport_of = lambda other: "self" if other == rank else link
    return SimpleNamespace(
        rank=rank,
        size=size,
        ranks=range(size),
        included=rank >= 0,
        is_world=is_world,
        machine_size=machines,
        world=world,
    )


def prepare(comm, asked=None, algorithm="gradient_allreduce", options=OPTIONS, **more):
    made = get_algorithm(algorithm)(**more)
    return prepare_tuning(
        asked, comm, "optim.0", made, options, NAMED, has_groups=False
    )


def test_the_setting_of_the_environment_counts_unless_the_call_says_otherwise():
    assert prepare(world_of()) is None
    assert prepare(world_of(autotune=True), asked=False) is None
    assert prepare(world_of(autotune=True)) is not None
    assert prepare(world_of(), asked=True) is not None


def test_ranks_without_others_are_not_tuned():
    assert prepare(world_of(size=1), asked=True) is None
    assert prepare(world_of(rank=-1), asked=True) is None


@pytest.mark.parametrize("how", [{"survives": True}, {"respawns": True}])
def test_jobs_whose_ranks_may_change_are_not_tuned(how):
    with pytest.raises(ValueError, match="autotune=True, but with bfrun --on-failure"):
        prepare(world_of(**how), asked=True)


def test_streaming_algorithms_are_not_tuned():
    options = dataclasses.replace(OPTIONS, num_steps_per_communication=4)
    with pytest.raises(ValueError, match="diloco has no buckets that can change while"):
        prepare(world_of(), True, "diloco", options, fragments=2)
    assert prepare(world_of(), True, "diloco", options) is not None


@pytest.mark.parametrize(("rank", "level"), [(0, "WARNING"), (1, "INFO")])
def test_the_setting_of_the_environment_warns_where_it_has_no_effect(
    rank, level, caplog
):
    caplog.set_level(logging.INFO, "bluecomm")
    assert prepare(world_of(rank, autotune=True), algorithm="win_put") is None
    (record,) = caplog.records
    assert record.levelname == level
    assert record.getMessage().startswith("optim.0: BLUECOMM_AUTOTUNE has no effect: ")


def test_the_space():
    space = prepare(world_of(), True).space
    sizes = [MIB >> 3, MIB >> 2, MIB >> 1, MIB, 2 * MIB, 4 * MIB, 8 * MIB]
    assert space.choices == {"bucket_bytes": sizes}
    assert space.default == {"bucket_bytes": 4 * MIB}


def test_compression_is_tried_only_if_it_is_allowed_and_used():
    allowed = world_of(autotune_compression=True)
    space = prepare(allowed, True).space
    assert space.choices["compression"] == ["none", "fp16"]
    assert space.default["compression"] == "none"
    compressed = dataclasses.replace(OPTIONS, compression=bf.Compression.fp16)
    adaptive = dataclasses.replace(OPTIONS, op=bf.Adasum)
    for options in (compressed, adaptive):
        assert (
            "compression" not in prepare(allowed, True, options=options).space.choices
        )
    assert "compression" not in prepare(allowed, True, "d2").space.choices


@pytest.mark.parametrize(
    ("size", "machines", "expected"),
    [
        (4, 1, None),
        (2, 2, None),
        (3, 3, ["auto", "direct", "ring"]),
        (4, 2, ["auto", "direct", "ring", "hierarchical"]),
    ],
)
def test_the_algorithm_of_the_allreduce_is_tried_between_machines(
    size, machines, expected
):
    comm = world_of(size=size, machines=machines)
    space = prepare(comm, True).space
    assert space.choices.get("allreduce_algorithm") == expected
    assert space.default.get("allreduce_algorithm") == (expected and "auto")
    adaptive = dataclasses.replace(OPTIONS, op=bf.Adasum)
    for asked in (prepare(comm, True, options=adaptive), prepare(comm, True, "d2")):
        assert "allreduce_algorithm" not in asked.space.choices


KIB = 1 << 10
CHUNKS = [32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, "auto"]


@pytest.mark.parametrize(
    ("streams", "expected"),
    [
        ("auto", [1, 2, 4, 8]),
        ("1", None),
        ("2", [1, 2]),
        ("6", [1, 2, 4, 6]),
        ("16", [1, 2, 4, 8, 16]),
    ],
)
def test_links_over_tcp_are_tried_with_fewer_streams(streams, expected):
    comm = world_of(machines=2, link="tcp", tcp_streams=streams)
    space = prepare(comm, True, "d2").space
    assert space.choices["chunk_bytes"] == CHUNKS
    assert space.default["chunk_bytes"] == "auto"
    assert space.choices.get("max_streams") == expected
    assert space.default.get("max_streams") == (expected and expected[-1])


@pytest.mark.parametrize(
    "facts",
    [
        {"machines": 1, "link": "tcp"},
        {"machines": 2, "link": "mpi"},
        {"machines": 2, "link": "tcp", "is_world": False},
    ],
)
def test_other_links_are_not_tuned(facts):
    assert prepare(world_of(**facts), True, "d2").space.choices.keys() == {
        "bucket_bytes"
    }


def test_only_the_first_optimizer_of_all_ranks_tunes_the_links():
    comm = world_of(machines=2, link="tcp")
    assert "chunk_bytes" in prepare(comm, True).space.choices
    assert "chunk_bytes" not in prepare(comm, True).space.choices


def test_links_return_to_the_defaults_unless_a_search_keeps_a_setting():
    tried = {"bucket_bytes": 1, "max_streams": 2, "chunk_bytes": 32 * KIB}
    world = World()
    sending = Sending(world)
    sending.apply({"bucket_bytes": 1})
    del sending
    assert not world.limits
    sending = Sending(world)
    sending.apply(tried)
    del sending
    assert world.limits == [(2, 32 * KIB), (16, 0)]
    sending = Sending(world)
    sending.apply(tried | {"chunk_bytes": "auto"})
    sending.keep()
    del sending
    assert world.limits[2:] == [(2, 0)]


def test_a_setting_becomes_options():
    assert options_of({"bucket_bytes": 3, "max_streams": 2, "chunk_bytes": "auto"}) == {
        "bucket_bytes": 3
    }
    assert options_of({"bucket_bytes": 3, "compression": "fp16"}) == {
        "bucket_bytes": 3,
        "compression": bf.Compression.fp16,
    }
    assert options_of({"bucket_bytes": 3}) == {"bucket_bytes": 3}


def test_models_with_one_division_are_not_tuned():
    made = get_algorithm("gradient_allreduce")()
    named = [("bias", torch.zeros(4))]
    tuning = prepare_tuning(
        True, world_of(), "optim.0", made, OPTIONS, named, has_groups=False
    )
    assert tuning is None


def test_only_the_first_rank_needs_the_packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert prepare(world_of(rank=1), True) is not None
    with pytest.raises(ImportError, match=r"autotune .* needs the package optuna"):
        prepare(world_of(), True)
    monkeypatch.delitem(sys.modules, "optuna")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert prepare(world_of(), True) is not None
    with pytest.raises(ImportError, match="BLUECOMM_AUTOTUNE_PLOT needs the package"):
        prepare(world_of(autotune_plot="trials.png"), True)
