"""A connection over SSH, with a channel whose network the test stops."""

import threading
from types import SimpleNamespace

import pytest

from bfrun.driver import suspend
from bfrun.driver.agent_session import AgentSession
from bfrun.frames.driver_to_agent import Suspend
from bfrun.hosts import LOCALHOST
from bfrun.launch.ssh import SshProcessConnection
from tests.support.deadlines import DEADLINE_S, wait_until


class Channel:
    """Sends once the test lets it."""

    def __init__(self):
        self.go_on, self.has_ended = threading.Event(), threading.Event()
        self.sent = b""

    def sendall(self, data):
        assert self.go_on.wait(DEADLINE_S)
        self.sent += data

    def recv(self, nbytes):
        self.has_ended.wait(DEADLINE_S)
        return b""

    recv_stderr = recv

    def exit_status_ready(self):
        return False


@pytest.fixture
def channel():
    return Channel()


@pytest.fixture
def connection(channel):
    ssh = SimpleNamespace(close=channel.has_ended.set, is_active=lambda: True)
    made = SshProcessConnection(ssh, channel)
    yield made
    channel.go_on.set()
    made.close()


def test_bytes_are_unsent_until_a_thread_has_passed_them_on(connection, channel):
    assert not connection.has_unsent
    assert connection.send(b"abc") == 3
    assert connection.has_unsent
    channel.go_on.set()
    wait_until(lambda: not connection.has_unsent, "the bytes are not sent")
    assert channel.sent == b"abc"


def test_frames_leave_the_process_before_it_stops(connection, channel, monkeypatch):
    monkeypatch.setattr(suspend, "_FLUSH_S", DEADLINE_S)
    session = AgentSession(LOCALHOST, connection, b"", b"", 30.0)
    session.send(Suspend())
    timer = threading.Timer(0.1, channel.go_on.set)
    timer.start()
    suspend.send_rest([session])
    assert b'"suspend"' in channel.sent
    timer.join()
