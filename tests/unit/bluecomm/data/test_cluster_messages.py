"""Messages of the cluster cache: over the engine, and over sockets."""

import contextlib
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from bluecomm.data.stores.cluster import local_socket, route, server
from bluecomm.data.stores.cluster.messages import MESSAGE_NBYTES, CacheMessage, Kind
from bluecomm.errors import PeerLostError, ShutdownError, SuspendedError
from tests.support.deadlines import DEADLINE_S
from tests.support.forks import fork_until_ready, kill
from tests.unit.bluecomm.data.cluster_network import Network


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
        made.post.side_effect = lambda event: event()
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
        monkeypatch.setattr(route, "StandingReceive", self.receive)
        return made

    def receive(self, comm, tag, nbytes, on_message, on_failure):
        made = Mock(comm=comm, on_message=on_message, on_failure=on_failure)
        self.receives.append(made)
        return made

    @staticmethod
    def world(size=2):
        members = SimpleNamespace(gone=(), listen=lambda _: Mock())
        return SimpleNamespace(size=size, is_ending=False, members=members)

    def test_it_goes_on_in_the_next_one(self, inbox, process):
        before, after = self.world(), self.world(3)
        made = route.EngineRoute(before, "7")
        made.open(inbox)
        (first,) = self.receives
        assert (first.comm.ranks, first.comm.owner) == ((0, 1), "data.cache.7")
        first.open.assert_called_once_with()
        before.is_ending, before.members.gone = True, (1,)
        process.is_initialized = True
        process.communicator = SimpleNamespace(world=after)
        assert not first.on_failure(ShutdownError("the world has ended"))
        assert [call[0] for call in inbox.mock_calls if call[0].startswith("on_")] == [
            *("on_lost", "on_move")
        ]
        second = self.receives[1]
        assert second.comm.ranks == (0, 1, 2)
        second.open.assert_called_once_with()
        made.close()
        second.close.assert_called_once_with()

    def test_without_another_one_the_server_is_told(self, inbox, process):
        world = self.world()
        world.is_ending = True
        route.EngineRoute(world, "7").open(inbox)
        assert not self.receives[0].on_failure(ShutdownError("the world has ended"))
        inbox.on_end.assert_called_once_with("its world has ended")
        assert len(self.receives) == 1

    def test_it_goes_on_after_a_failure(self, inbox, process):
        route.EngineRoute(self.world(), "7").open(inbox)
        for error in (SuspendedError("paused"), PeerLostError("cancelled")):
            assert self.receives[0].on_failure(error)

    def test_messages_are_passed_on(self, inbox, process):
        route.EngineRoute(self.world(), "7").open(inbox)
        message = CacheMessage(Kind.FIND, key=3)
        self.receives[0].on_message(1, message.pack())
        inbox.on_message.assert_called_once_with(1, message)
        with pytest.raises(ValueError, match="is not a valid Kind"):
            self.receives[0].on_message(1, b"\xff" * MESSAGE_NBYTES)


def value_descriptors():
    """Return the descriptors of this process that stand for values."""
    found = []
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "bluecomm-value" in os.readlink(f"/proc/self/fd/{one}"):
                found.append(one)
    return found


def test_no_descriptor_is_left_of_a_value_that_cannot_be_copied():
    with pytest.raises(IndexError, match="slice assignment is wrong size"):
        local_socket.memory_of([b"abc"], 2)
    assert value_descriptors() == []


def test_no_descriptor_is_left_of_a_value_that_still_arrives(network, monkeypatch):
    first = network.servers[0]
    key = network.keys_of(1)[0]
    network.stores[1].put(key, b"value" * 1000, 1.0)
    arriving = threading.Event()
    monkeypatch.setattr(first._route, "receive", lambda *_: arriving.set())
    client = local_socket.LocalClient(first.address)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.ask, CacheMessage(Kind.FIND, key=key), DEADLINE_S)
        assert arriving.wait(DEADLINE_S)
        first.stop()
        with pytest.raises(ConnectionError, match=r"closed the connection|reset"):
            asking.result(DEADLINE_S)
    assert value_descriptors() == []


def test_a_server_that_cannot_start_leaves_nothing(network, monkeypatch):
    made = server.CacheServer(0, {0: 0, 1: 1}, network.stores[0]._memory, Mock())
    start = Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(made._loop._thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        made.start()
    for _ in range(2):
        made.stop()
    assert made._listener.fileno() == made._loop._waker == -1


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
