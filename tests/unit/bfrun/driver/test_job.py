"""Signals that come in one turn of the driver's loop with others and with the end."""

import os
import signal
from types import SimpleNamespace

import pytest

from bfrun.channel import MessageParser, encode
from bfrun.config import LaunchConfig
from bfrun.driver.agent_session import AgentSession
from bfrun.driver.job import Job
from bfrun.driver.takeover import Takeover
from bfrun.frames.agent_to_driver import AgentEnded, RankExited, RankStarted
from bfrun.frames.driver_to_agent import EndRanks
from bfrun.hosts import LOCALHOST
from bfrun.plan import make_plan


class FakeConnection:
    """An agent whose only rank has just ended. Its descriptor is always readable."""

    has_unsent = False

    def __init__(self, fd):
        self.fileno = lambda: fd
        self.parser, self.sent = MessageParser(), []
        self.arriving = [RankExited(rank=0, pid=7, status=0)]

    @property
    def must_end(self):
        return EndRanks.kind in self.sent

    def receive(self, nbytes):
        if self.arriving:
            return encode(self.arriving.pop().to_message())
        return None

    def send(self, data):
        self.sent += [message["type"] for message in self.parser.feed(bytes(data))]
        if self.must_end:
            self.arriving = [AgentEnded(left=0)]
        return len(data)

    def wait(self, timeout_s):
        return 0

    def leave(self):
        pass


@pytest.fixture
def readable_fd():
    read_fd, write_fd = os.pipe()
    os.close(write_fd)
    yield read_fd
    os.close(read_fd)


@pytest.mark.parametrize(
    ("numbers", "detaches"),
    [
        ([signal.SIGHUP], True),
        ([signal.SIGHUP, signal.SIGTERM], False),
        ([signal.SIGTERM, signal.SIGHUP], False),
    ],
)
def test_a_job_ends_or_goes_on_but_not_both(numbers, detaches, readable_fd):
    arrived = [numbers]
    signals = SimpleNamespace(
        fd=readable_fd,
        SUSPEND=signal.SIGTSTP,
        NOTICE=signal.SIGUSR1,
        take=lambda: arrived.pop() if arrived else [],
    )
    printer = SimpleNamespace(
        say=lambda *text: None,
        broken=False,
        terminal_closed=False,
        busy=False,
        taken_at=0.0,
    )
    plan = make_plan(LaunchConfig(("x",), 1), {}, {})
    other_fd = os.dup(readable_fd)
    connection = FakeConnection(other_fd)
    job = Job(
        plan,
        LaunchConfig(("x",), on_failure="continue"),
        [AgentSession(LOCALHOST, connection, b"", b"", 30.0)],
        signals,
        lambda on_shown: printer,
        record=SimpleNamespace(),
        takeover=Takeover(0.0, [(0.0, RankStarted(rank=0, pid=7))], []),
    )
    leftovers = job.run()
    if leftovers is None:
        job.detach()
    os.close(other_fd)
    assert (leftovers is None, connection.must_end) == (detaches, not detaches)
