"""The socket at which another driver takes over an agent."""

import os
import selectors
import socket

import pytest

from bfrun.agent.attach_server import AttachServer
from bfrun.channel import encode
from bfrun.frames.driver_to_agent import Attach
from tests.support.deadlines import DEADLINE_S


class Agent:
    """Just enough of an agent to run the server, one event at a time."""

    def __init__(self, folder):
        self.selector = selectors.DefaultSelector()
        self.drivers = []
        self.now = 0.0
        self.path = str(folder / "driver")
        self.server = AttachServer(
            str(folder), "key", self.selector, self.drivers.append, lambda: self.now
        )

    def connect(self, *, sends=b""):
        driver = socket.socket(socket.AF_UNIX)
        driver.settimeout(DEADLINE_S)
        driver.connect(self.path)
        self.serve()
        if sends:
            driver.sendall(sends)
            self.serve()
        return driver

    def serve(self):
        for key, mask in self.selector.select(DEADLINE_S):
            key.data(mask)


@pytest.fixture
def agent(tmp_path):
    agent = Agent(tmp_path)
    yield agent
    agent.server.close()
    agent.selector.close()


def test_a_driver_needs_the_key(agent):
    # JSON can hold half of a surrogate pair, which is no text.
    for key in ("", "kez", "\ud800"):
        with agent.connect(sends=encode(Attach(key=key).to_message())) as driver:
            assert driver.recv(1) == b""
    assert agent.drivers == []
    with agent.connect(sends=encode(Attach(key="key").to_message())):
        (accepted,) = agent.drivers
        accepted.close()


def test_a_driver_that_sends_nothing_is_dropped_in_time(agent):
    with agent.connect() as driver:
        agent.now = 29.0
        agent.server.drop_late()
        assert len(agent.selector.get_map()) == 2
        agent.now = 31.0
        agent.server.drop_late()
        assert len(agent.selector.get_map()) == 1
        assert driver.recv(1) == b""


def test_the_socket_may_have_been_removed(agent):
    os.unlink(agent.path)
