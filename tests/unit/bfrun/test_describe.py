"""Plans as text."""

from __future__ import annotations

import pytest

from bfrun.config import LaunchConfig
from bfrun.describe import describe_addresses, describe_plan
from bfrun.hosts import Host
from bfrun.plan import HostFacts, make_plan, with_addresses

A, B = Host("a", 2), Host("long-name", 1)


def make(**options):
    config = LaunchConfig(command=("run", "a b"), cwd="/job", hosts=(A, B), **options)
    facts = HostFacts((0, 1, 2, 3, 8, 9), gpus=("0", "1"))
    return make_plan(config, {A: facts, B: facts}, {})


def test_plan():
    assert describe_plan(make(bind_to="core", gpus_per_rank=1)).splitlines() == [
        "3 ranks on 2 hosts, 2 machines",
        "command: run 'a b'",
        "directory: /job",
        "rank  host       local rank  machine rank  threads  cpus     gpus",
        "0     a          0 of 2      0 of 2        3        0-2      0",
        "1     a          1 of 2      0 of 2        3        3,8-9    1",
        "2     long-name  0 of 1      1 of 2        6        0-3,8-9  0",
    ]


def test_one_of_each_is_singular():
    text = describe_plan(make(world_size=1))
    assert text.startswith("1 rank on 1 host, 1 machine\n")
    assert text.endswith("any   any")


@pytest.mark.parametrize(
    ("addresses", "text"),
    [((), "none needed, one machine"), (("10.0.0.1", "fd00::1"), "10.0.0.1, fd00::1")],
)
def test_addresses(addresses, text):
    plan = with_addresses(make(), {A: addresses, B: addresses})
    assert describe_addresses(plan).splitlines()[2] == f"long-name  {text}"
