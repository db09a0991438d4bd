"""Tests that hosts find each other, and that strangers learn nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

import pytest

from bfrun.preflight import reach
from bfrun.preflight.reach import ProbeListener, dial
from tests.support.deadlines import DEADLINE_S, wait_until

KEY = bytes(range(32))
HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(reach, "DIAL_S", DEADLINE_S)
    monkeypatch.setattr(reach, "CALL_S", DEADLINE_S)


@pytest.fixture
def listen():
    """Return a function that listens until the end of the test."""
    with contextlib.ExitStack() as stack:

        def make(addresses=(HERE,), key=KEY):
            made = ProbeListener(addresses, "node1", key)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def port(listen):
    return listen().ports[HERE]


def stranger(port):
    return socket.create_connection((HERE, port), timeout=DEADLINE_S)


def ends(link):
    """Return whether the other end closes without having sent anything."""
    try:
        return link.recv(100) == b""
    except ConnectionResetError:
        return True


def test_dial_tells_the_right_listener_from_others(listen, port):
    of_another_key = listen(key=b"wrong").ports[HERE]
    with socket.socket() as closed:
        closed.bind((HERE, 0))
        targets = [
            (HERE, port, "node1"),
            (HERE, port, "node2"),
            (HERE, of_another_key, "node1"),
            (HERE, closed.getsockname()[1], "node1"),
            (HERE, "no listener there", "node1"),
        ]
        assert dial(targets, KEY) == [
            None,
            "another machine answers there",
            "another machine answers there",
            "Connection refused",
            "no listener there",
        ]


def test_dial_does_not_believe_a_listener_without_the_key():
    with socket.create_server((HERE, 0)) as server:

        def answer():
            caller, _ = server.accept()
            with caller:
                caller.sendall(os.urandom(48))
                caller.recv(100)

        thread = threading.Thread(target=answer)
        thread.start()
        target = (HERE, server.getsockname()[1], "node1")
        assert dial([target], KEY) == ["another machine answers there"]
        thread.join()


def test_dial_does_not_wait_for_a_silent_listener(monkeypatch):
    monkeypatch.setattr(reach, "DIAL_S", 0.3)
    with socket.create_server((HERE, 0)) as silent:
        (reason,) = dial([(HERE, silent.getsockname()[1], "node1")], KEY)
    assert "timed out" in reason


@pytest.mark.parametrize(
    "said", [b"G", b"GET / HTTP/1.1\r\n\r\n", b"blueprb1" + b"x" * 48, b"blueprb2"]
)
def test_a_stranger_is_closed_at_once_and_told_nothing(said, port):
    with stranger(port) as link:
        link.sendall(said)
        assert ends(link)


def test_a_silent_stranger_is_closed(port, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(reach, "CALL_S", 0.1)
        with stranger(port) as link:
            assert ends(link)


def test_strangers_do_not_keep_dialers_out(port, monkeypatch):
    monkeypatch.setattr(reach, "MAX_CALLERS", 4)
    links = [stranger(port) for _ in range(20)]
    assert dial([(HERE, port, "node1")], KEY) == [None]
    for link in links:
        link.close()


def test_a_hello_in_pieces_is_heard(port):
    hello = reach._MAGIC + os.urandom(16)
    hello += reach._mac(KEY, "hello", "node1", hello)
    with stranger(port) as link:
        link.sendall(hello[:5])
        link.sendall(hello[5:20])
        link.sendall(hello[20:])
        assert len(link.recv(100)) == 48


def test_an_address_of_another_machine_is_not_listened_at(listen):
    ports = listen(["192.0.2.1", HERE]).ports
    assert str(ports["192.0.2.1"]).startswith("no listener there: Cannot assi")
    assert isinstance(ports[HERE], int)


def test_only_the_given_address_is_open(port):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=DEADLINE_S)
    wait_until(lambda: dial([(HERE, port, "node1")], KEY) == [None], "no answer")


def test_a_closed_listener_leaves_nothing(listen):
    listener = listen()
    with stranger(listener.ports[HERE]) as link:
        link.sendall(b"blue")
        listener.close()
        assert ends(link)
    with pytest.raises(ConnectionRefusedError):
        stranger(listener.ports[HERE])
    assert not listener._thread.is_alive()
