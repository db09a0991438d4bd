"""Messages of the cluster cache: over the engine, and over sockets."""

import os
import socket
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from bluecomm.data.stores.cluster import local_socket, route, server
from bluecomm.data.stores.cluster.messages import CacheMessage, Kind
from bluecomm.errors import CommunicationTimeout, PeerLostError
from tests.support.deadlines import DEADLINE_S
from tests.unit.bluecomm.data.cluster_network import Network
from tests.unit.bluecomm.data.forks import fork_until_ready, kill


@pytest.fixture
def network():
    made = Network()
    yield made
    made.close()


class TestEngineRoute:
    """The way over the engine, when a world ends."""

    @pytest.fixture
    def inbox(self):
        made = Mock()
        made.post.side_effect = made.post_later.side_effect = lambda event, *_: event()
        return made

    @pytest.fixture
    def process(self, monkeypatch):
        made = SimpleNamespace(is_initialized=False)
        monkeypatch.setattr(route, "current_process", lambda: made)
        monkeypatch.setattr(
            route,
            "Communicator",
            lambda world, ranks, owner: SimpleNamespace(
                world=world, ranks=tuple(ranks), owner=owner
            ),
        )
        self.receives = []
        monkeypatch.setattr(
            route, "post_receive", lambda *call: self.receives.append(call) or Mock()
        )
        return made

    @staticmethod
    def world(size=2):
        members = SimpleNamespace(gone=(), listen=lambda _: Mock())
        return SimpleNamespace(size=size, is_ending=False, members=members)

    def test_it_goes_on_in_the_next_one(self, inbox, process):
        before, after = self.world(), self.world(3)
        made = route.EngineRoute(before, "7")
        made.open(inbox)
        [(_, source, _, comm, _)] = self.receives
        assert (source, comm.ranks, comm.owner) == (None, (0, 1), "data.cache.7")
        before.is_ending, before.members.gone = True, (1,)
        process.is_initialized = True
        process.communicator = SimpleNamespace(world=after)
        made._listen_later()
        assert self.receives[1][3].ranks == (0, 1, 2)
        assert [call[0] for call in inbox.mock_calls if call[0].startswith("on_")] == [
            *("on_lost", "on_move")
        ]

    def test_without_another_one_the_server_is_told(self, inbox, process):
        world = self.world()
        world.is_ending = True
        route.EngineRoute(world, "7").open(inbox)
        inbox.on_end.assert_called_once_with("its world has ended")
        assert self.receives == []

    def test_a_failed_receive_is_replaced(self, inbox, process):
        made = route.EngineRoute(self.world(), "7")
        made.open(inbox)
        for error in (CommunicationTimeout("late"), PeerLostError("cancelled")):
            made._on_message(Mock(wait=Mock(side_effect=error)), None)
        assert len(self.receives) == 3


def test_other_users_are_refused(network, monkeypatch):
    client = local_socket.LocalClient(network.servers[0].address)
    find = CacheMessage(Kind.FIND, key=1)
    monkeypatch.setattr(server, "is_own_user", lambda _: False)
    with pytest.raises(OSError, match=r"closed the connection|Broken pipe|reset"):
        client.ask(find, DEADLINE_S)
    monkeypatch.setattr(local_socket, "is_own_user", lambda _: False)
    with pytest.raises(OSError, match="another user has this address"):
        client.ask(find, DEADLINE_S)


def test_a_fork_does_not_keep_a_server_open(network):
    client = local_socket.LocalClient(network.servers[0].address)
    find = CacheMessage(Kind.FIND, key=network.keys_of(0)[0])
    assert client.ask(find, DEADLINE_S)[0].kind is Kind.MISSING
    pid = fork_until_ready(lambda pause: pause())
    network.servers[0].stop()
    for error in (r"closed the connection|Broken pipe|reset", "refused"):
        with pytest.raises(ConnectionError, match=error):
            client.ask(find, DEADLINE_S)
    kill(pid)


def test_wrong_packets_are_refused(network):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(b"x")
        with pytest.raises(OSError, match="sends no message: expected 40 bytes, got 1"):
            local_socket.receive_packet(theirs)
        fd, _ = local_socket.new_memory(64)
        message = CacheMessage(Kind.KEEP, nbytes=128)
        local_socket.send_packet(ours, message, fd)
        with pytest.raises(OSError, match="sends less memory than a value needs"):
            local_socket.receive_packet(theirs)
        os.close(fd)
        ours.close()
        with pytest.raises(OSError, match="the other side has closed the connection"):
            local_socket.receive_packet(theirs)
