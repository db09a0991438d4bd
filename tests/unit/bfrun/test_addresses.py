"""Tests the choice of addresses that carry data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfrun.addresses import (
    Address,
    choose_interfaces,
    reachable_addresses,
    source_address,
)
from bfrun.errors import LaunchError

ETH0 = Address("eth0", "10.0.0.1")
ETH1 = Address("eth1", "10.1.0.1")
ETH0_V6 = Address("eth0", "2001:db8::1")
IB0 = Address("ib0", "192.168.3.1")
DOCKER = Address("docker0", "172.17.0.1")
ALL = (DOCKER, ETH0, ETH1, ETH0_V6, IB0)


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("eth0", (ETH0, ETH0_V6)),
        ("eth*", (ETH0, ETH1, ETH0_V6)),
        ("ib0,eth1", (ETH1, IB0)),
        ("^docker0", (ETH0, ETH1, ETH0_V6, IB0)),
        ("^docker0,eth*", (IB0,)),
        ("^docker*,^ib*", (ETH0, ETH1, ETH0_V6)),
        ("eth*,^eth1", (ETH0, ETH0_V6)),
        ("10.1.0.0/16", (ETH1,)),
        ("10.0.0.0/8", (ETH0, ETH1)),
        ("10.0.0.99/24", (ETH0,)),
        ("10.0.0.1", (ETH0,)),
        ("2001:db8::/32", (ETH0_V6,)),
        ("^10.0.0.0/8,172.16.0.0/12", (ETH0_V6, IB0)),
        ("wlan0", ()),
    ],
)
def test_pattern(pattern, chosen):
    assert choose_interfaces(ALL, pattern) == chosen


def test_by_default_those_of_containers_come_last():
    assert choose_interfaces(ALL, None) == (ETH0, ETH1, ETH0_V6, IB0, DOCKER)


@given(st.sets(st.sampled_from(["eth0", "eth1", "ib0", "docker0"]), min_size=1))
def test_excluding_is_the_complement_of_including(names):
    text = ",".join(sorted(names))
    included = choose_interfaces(ALL, text)
    excluded = choose_interfaces(ALL, "^" + text)
    assert set(included) | set(excluded) == set(ALL)
    assert not set(included) & set(excluded)


@pytest.mark.parametrize(
    ("pattern", "match"),
    [("10.0.0.0/99", "'10.0.0.0/99' is not a network"), (" , ", "names no interface")],
)
def test_wrong_pattern(pattern, match):
    with pytest.raises(LaunchError, match=match):
        choose_interfaces(ALL, pattern)


def test_an_address_counts_when_every_other_host_reached_it():
    unreached = {ETH0: {"b": "timed out"}, ETH1: {}, IB0: {}}
    chosen = reachable_addresses("a", (ETH0, ETH1, IB0), unreached)
    assert chosen == ("10.1.0.1", "192.168.3.1")


def test_the_error_names_the_hosts_that_reached_no_address_and_why():
    unreached = {ETH0: {"b": "timed out", "c": "No route to host"}}
    with pytest.raises(
        LaunchError,
        match=r"host 'a' has no address that every other host can reach: "
        r"10\.0\.0\.1 \(eth0\) not reached from b \(timed out\), c \(No route to "
        r"host\); open the firewall .* --network-interface",
    ):
        reachable_addresses("a", (ETH0,), unreached)


def test_host_whose_addresses_were_all_excluded():
    with pytest.raises(LaunchError, match="--network-interface allows none of its"):
        reachable_addresses("a", (), {})


def test_the_own_address_of_a_route():
    assert source_address("127.0.0.1") == "127.0.0.1"
    assert source_address("no.such.host.invalid") is None
