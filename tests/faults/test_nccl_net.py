"""The network plugin for NCCL between two hosts: cards, and faults of the network.

Peers that die, freeze, lie or fork are tested in native/tests/nccl_net.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cluster import needs_hosts, run
from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.nccl_net_client import REMOTE_ERROR, PluginClient, both, join
from tests.support.paths import Paths, make_paths

pytestmark = pytest.mark.faults

# So long that the tests fail if only the timeout detects a fault.
PATIENT = {"BLUECOMM_NET_TIMEOUT_S": "600"}
ETH0 = {"NCCL_SOCKET_IFNAME": "=eth0"}
SIX = ["fd77::1", "fd77::2"]

Clients = list[PluginClient]
Start = Callable[..., Clients]


@pytest.fixture(scope="module")
def paths() -> Iterator[Paths]:
    """Two hosts with two links; the first has addresses of both families."""
    needs_hosts()
    with make_paths(links=2) as paths:
        for namespace, address in zip((paths.here, paths.there), SIX, strict=True):
            inside = ["ip", "-n", namespace]
            run(*inside, "addr", "add", f"{address}/64", "dev", "eth0", "nodad")
            for device in ("eth0", "eth1"):
                show = [*inside, "-6", "addr", "show", "dev", device]
                wait_until(
                    lambda show=show: bindable(run(*show)), "no address of the link"
                )
        yield paths


def bindable(shown: str) -> bool:
    """Return whether a card that `ip addr show` shows has an address of the link.

    It gets one when there is a carrier, and can be bound once no other host has it.
    """
    return "LOWER_UP" in shown and "fe80::" in shown and "tentative" not in shown


@pytest.fixture
def start(paths: Paths) -> Iterator[Start]:
    """Return a function that starts a client on each host."""
    with ExitStack() as stack:

        def start(**variables: str) -> Clients:
            return [
                stack.enter_context(PluginClient(namespace, variables))
                for namespace in (paths.here, paths.there)
            ]

        yield start


def hosts_of(client: PluginClient) -> set[str]:
    """Return the hosts that a client's streams go to."""
    return {
        stream["peer"].rpartition(":")[0]
        for connection in client.call("counters")
        for stream in connection["streams"]
    }


@pytest.mark.parametrize(
    ("interfaces", "cards"),
    [
        ("", ["eth0", "eth1"]),
        ("eth", ["eth0", "eth1"]),
        ("=eth1", ["eth1"]),
        ("eth1,eth0", ["eth0", "eth1"]),
        ("^eth0", ["lo", "eth1"]),
        ("^=eth0,lo", ["eth1"]),
    ],
)
def test_cards_are_those_that_nccl_would_take(paths, interfaces, cards):
    with PluginClient(paths.here, {"NCCL_SOCKET_IFNAME": interfaces}) as client:
        assert client.call("devices") == cards


@pytest.mark.parametrize("card", [0, 1])
def test_each_card_carries_its_own_connections(start, card):
    clients = start()
    join(clients, card)
    assert both(clients, "traffic", 20, 300_000) == [0, 0]
    assert hosts_of(clients[0]) == {f"10.77.{card}.2"}
    assert both(clients, "close") == [0, 0]


def test_ipv6(start):
    clients = start(**ETH0, NCCL_SOCKET_FAMILY="AF_INET6", BLUECOMM_NET_STREAMS="3")
    join(clients)
    assert both(clients, "traffic", 20, 300_000) == [0, 0]
    (host,) = hosts_of(clients[0])
    # The first address of the card, as in NCCL: link-local, or the global one.
    assert host == f"[{SIX[1]}]" or host.startswith("[fe80::")
    assert both(clients, "close") == [0, 0]


def test_ipv6_of_the_link_alone(paths, start):
    variables = {"NCCL_SOCKET_IFNAME": "=eth1", "NCCL_SOCKET_FAMILY": "AF_INET6"}
    clients = start(**variables, BLUECOMM_NET_STREAMS="3")
    join(clients)
    assert both(clients, "traffic", 20, 300_000) == [0, 0]
    (host,) = hosts_of(clients[0])
    assert host.startswith("[fe80::")
    assert host.endswith("%eth1]")
    assert both(clients, "close") == [0, 0]


def test_dropped_packets_cost_no_byte(paths, start):
    clients = start(**ETH0, BLUECOMM_NET_STREAMS="4")
    join(clients)
    tc = ["tc", "-n", paths.here, "-s"]
    # The queue is shorter than a sender's window.
    limit = ["tbf", "rate", "200mbit", "burst", "10kb", "limit", "20kb"]
    run(*tc, "qdisc", "add", "dev", "eth0", "root", *limit)
    try:
        assert both(clients, "traffic", 20, 1_000_000) == [0, 0]
        assert "dropped 0" not in run(*tc, "qdisc", "show", "dev", "eth0")
    finally:
        run(*tc, "qdisc", "del", "dev", "eth0", "root")
    assert both(clients, "close") == [0, 0]


def test_a_network_that_swallows_everything_is_a_remote_error(paths, start):
    clients = start(**ETH0, BLUECOMM_NET_TIMEOUT_S="2")
    join(clients)
    assert both(clients, "post") == [2, 2]
    ends = [(paths.here, paths.there_addresses), (paths.there, paths.here_addresses)]
    nobody = ["lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent"]
    for namespace, others in ends:
        run("ip", "-n", namespace, "neigh", "replace", others[0], *nobody)
    try:
        expected = [REMOTE_ERROR, REMOTE_ERROR]
        assert both(clients, "finish") == [expected, expected]
    finally:
        for namespace, others in ends:
            run("ip", "-n", namespace, "neigh", "del", others[0], "dev", "eth0")
    assert both(clients, "close") == [0, 0]


@pytest.mark.parametrize("streams", ["1", "4"])
def test_killed_connections_are_a_remote_error(paths, start, streams):
    clients = start(**ETH0, **PATIENT, BLUECOMM_NET_STREAMS=streams)
    join(clients)
    assert both(clients, "post") == [2, 2]
    inside = ["ip", "netns", "exec", paths.here]
    run(*inside, "ss", "-K", "dst", paths.there_addresses[0])
    expected = [REMOTE_ERROR, REMOTE_ERROR]
    assert both(clients, "finish") == [expected, expected]
    assert both(clients, "close") == [0, 0]


def test_a_receiver_without_descriptors_accepts_when_it_has_some(start):
    clients = start(**ETH0, **PATIENT)
    sender, receiver = clients
    handles = [client.call("listen", 0) for client in clients]
    receiver.call("limit_descriptors", 0)
    sender.send("open", 0, handles[1])
    assert receiver.call("accept_repeatedly", 50) is False
    receiver.call("limit_descriptors", None)
    assert receiver.call("open", 0, handles[0]) == 0
    assert sender.receive() == 0
    assert both(clients, "traffic", 10, 100_000) == [0, 0]
    assert both(clients, "close") == [0, 0]


@pytest.fixture(scope="module")
def short_io(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the preloaded library that makes reads and writes short."""
    library = tmp_path_factory.mktemp("short") / "short_io.so"
    source = Path(__file__).parents[1] / "support" / "short_io.cpp"
    compiler = os.environ.get("CXX", "g++").split()
    flags = ["-std=c++20", "-O1", "-Wall", "-Werror", "-shared", "-fPIC"]
    command = [*compiler, *flags, str(source), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True, timeout=DEADLINE_S)
    return library


@pytest.mark.parametrize("streams", ["1", "4"])
def test_short_and_interrupted_reads_and_writes_cost_no_byte(start, short_io, streams):
    clients = start(
        **ETH0, **PATIENT, BLUECOMM_NET_STREAMS=streams, LD_PRELOAD=str(short_io)
    )
    join(clients)
    for nbytes in (1, 16_000, 300_001):
        assert both(clients, "traffic", 20, nbytes) == [0, 0]
    assert both(clients, "close") == [0, 0]
