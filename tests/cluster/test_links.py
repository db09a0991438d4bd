"""Tests how many bytes each path carries with several TCP streams between hosts."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.support.cluster import ClusterHost, run
from tests.support.launch import launched
from tests.support.paths import sort_by_address, sort_by_port

pytestmark = pytest.mark.cluster

# Each rank prints its connections to the other, after 192 MiB each way.
PROGRAM = """
import dataclasses, json
import torch
import bluecomm as bf

bf.init()
x = torch.ones(4 << 20)
for _ in range(12):
    assert bf.allreduce(x, average=False).eq(2).all()
(neighbor,) = bf.stats().neighbors
print(json.dumps([dataclasses.asdict(one) for one in neighbor.streams]), flush=True)
bf.shutdown()
"""


@pytest.fixture(autouse=True)
def plain_links(cluster):
    """Remove the limits of a test."""
    yield
    for host in cluster.hosts[:2]:
        run("tc", "-n", host.namespace, "qdisc", "del", "dev", "eth0", "root")


def streams_between(cluster, folder, **variables: str) -> list[list[dict]]:
    """Run the program on two hosts, and return the counts of each connection."""
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:1,node2:1"]
    for name, value in variables.items():
        options += ["-x", f"{name}={value}"]
    with launched(folder, *options, sys.executable, "-c", PROGRAM) as job:
        assert job.wait() == 0, job.err
        return [json.loads(line.partition(" ")[2]) for line in job.out.splitlines()]


def bytes_by_class(host: ClusterHost) -> dict[str, int]:
    """Return the bytes that left through each class of the host's link."""
    text = run("tc", "-n", host.namespace, "-s", "class", "show", "dev", "eth0")
    found = re.findall(r"class htb (\S+) .*\n Sent (\d+) bytes", text)
    return {name: int(count) for name, count in found}


def share_of_the_lesser(counts) -> float:
    return min(counts) / sum(counts)


def test_both_paths_carry_where_ports_choose_the_path(cluster, tmp_path):
    for host in cluster.hosts[:2]:
        sort_by_port(host.namespace, (400, 100), offset=20)
    counted = streams_between(cluster, tmp_path, BLUECOMM_TCP_STREAMS="16")
    for streams in counted:
        assert len(streams) == 16
        assert sum(one["bytes_sent"] for one in streams) >= 64 << 20
    # Source ports differ only on the host that opened the connections. The slow path
    # gets less where the ranks lack the processor to fill the fast one.
    shares = [
        share_of_the_lesser(bytes_by_class(host).values()) for host in cluster.hosts[:2]
    ]
    assert max(shares) >= 0.03


def test_both_paths_carry_where_hosts_have_two_addresses(cluster, tmp_path):
    hosts = cluster.hosts[:2]
    seconds = [f"{host.address}{number}" for number, host in enumerate(hosts)]
    for host, second in zip(hosts, seconds, strict=True):
        address = ["addr", "add", f"{second}/24", "dev", "eth0"]
        run("ip", "-n", host.namespace, *address)
        sort_by_address(host.namespace, (200, 200), *seconds)
    try:
        counted = streams_between(cluster, tmp_path)
    finally:
        for host, second in zip(hosts, seconds, strict=True):
            address = ["addr", "del", f"{second}/24", "dev", "eth0"]
            run("ip", "-n", host.namespace, *address)
    assert all(len(streams) >= 2 for streams in counted)
    # The rank that opened the connections sees two addresses of the other one.
    by_address: list[dict[str, int]] = [{} for _ in counted]
    for counts, streams in zip(by_address, counted, strict=True):
        for one in streams:
            host = one["address"].rpartition(":")[0]
            counts[host] = counts.get(host, 0) + one["bytes_sent"]
    (both,) = (counts for counts in by_address if len(counts) == 2)
    # The paths are equal, so each should carry half of the bytes.
    assert share_of_the_lesser(both.values()) >= 0.25
