"""Tests that a timeline of two hosts has one clock, and effects follow causes."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.launch import launched
from tests.support.traces import check_timeline, slices_of

pytestmark = pytest.mark.cluster

ROUNDS = 20
PROGRAM = f"""
import torch
import bluecomm as bf

bf.init()
assert bf.stats().neighbors[0].transport == "tcp"
for _ in range({ROUNDS}):
    bf.allreduce(torch.ones(1000), name="x")
"""


@pytest.fixture(scope="module")
def timeline(cluster, tmp_path_factory):
    """Return the timeline of one rank on each of two hosts."""
    folder = tmp_path_factory.mktemp("job")
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:1,node2:1"]
    target = folder / "t.json"
    options += ["--timeline-filename", str(target)]
    with launched(folder, *options, sys.executable, "-c", PROGRAM) as job:
        assert job.wait() == 0, job.err
        assert "clocks agree within" in job.err
    return json.loads(target.read_text())


def test_both_hosts_are_in_it(timeline):
    check_timeline(timeline)
    ranks = timeline["otherData"]["ranks"]
    assert [(each["rank"], each["host"]) for each in ranks] == [
        (0, "node1"),
        (1, "node2"),
    ]


def test_the_clocks_are_compared_and_the_error_is_an_upper_bound(timeline):
    # All hosts are one machine with one clock, so the true offset is 0.
    for rank in timeline["otherData"]["ranks"]:
        assert rank["clock_error_us"] > 0
        assert abs(rank["clock_offset_us"]) <= rank["clock_error_us"]


def test_messages_arrive_after_they_were_sent(timeline):
    error = sum(each["clock_error_us"] for each in timeline["otherData"]["ranks"])
    calls = {
        (rank, each["args"]["sequence"]): each
        for rank in range(2)
        for each in slices_of(timeline, rank, "communicate")
    }
    assert set(calls) == {(rank, n) for rank in range(2) for n in range(ROUNDS)}
    for (rank, number), call in calls.items():
        peer = 1 - rank
        arrived = call["args"]["first_header_us"][f"{peer}"]
        assert calls[peer, number]["ts"] <= arrived + error
        assert call["args"]["bytes_sent"] == {f"{peer}": 4000}
