"""The connection to an agent that another driver has started."""

import contextlib
import os
import socket
import subprocess

import pytest

from bfrun.launch import unix_socket
from bfrun.launch.unix_socket import UnixConnection, answers
from tests.support.deadlines import DEADLINE_S
from tests.support.stand_in import replace_in


def test_bytes_go_both_ways_without_waiting(tmp_path):
    path = str(tmp_path / "driver")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        connection = UnixConnection(path, os.getpid())
        agent, _ = listener.accept()
        assert connection.receive(10) is None
        assert connection.send(b"abc") == 3
        assert agent.recv(10) == b"abc"
        agent.sendall(b"de")
        assert connection.receive(10) == b"de"
        agent.close()
        assert connection.receive(10) == b""
        connection.close()


def test_an_agent_that_has_ended_cannot_be_reached(tmp_path):
    path = str(tmp_path / "driver")
    assert not answers(path)
    connection = UnixConnection(path, os.getpid())
    assert connection.receive(10) == b""
    with pytest.raises(ConnectionError, match="its socket cannot be reached"):
        connection.send(b"abc")
    connection.close()


def test_a_driver_waits_while_others_are_to_be_accepted(tmp_path, monkeypatch):
    path = str(tmp_path / "driver")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                other = stack.enter_context(socket.socket(socket.AF_UNIX))
                other.setblocking(False)
                other.connect(path)

        def accept(seconds):
            stack.enter_context(listener.accept()[0])

        replace_in(monkeypatch, unix_socket, "time", sleep=accept)
        connection = UnixConnection(path, os.getpid())
        assert connection.send(b"abc") == 3
        connection.close()


def test_the_end_of_the_guard_is_awaited(tmp_path):
    guard = subprocess.Popen(["sleep", "1000"])
    connection = UnixConnection(str(tmp_path / "driver"), guard.pid)
    assert connection.wait(0.0) is None
    guard.kill()
    # A process that nobody has reaped yet has ended, too.
    assert connection.wait(DEADLINE_S) == 0
    guard.wait()
    connection.close()
