"""Signals that come in one turn of the driver's loop with others and with the end."""

import os
import signal
from types import SimpleNamespace

import pytest

from bfrun.channel import MessageParser, encode
from bfrun.config import LaunchConfig
from bfrun.driver.agent_session import AgentSession
from bfrun.driver.host_arrivals import Arrival
from bfrun.driver.job import Job
from bfrun.driver.takeover import Takeover
from bfrun.frames.agent_to_driver import AgentEnded, RankExited, RankStarted
from bfrun.frames.driver_to_agent import EndRanks
from bfrun.hosts import LOCALHOST, Host
from bfrun.plan import HostPlan, make_plan


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


def make_job(readable_fd, host, connection, **settings):
    """Return a job with one rank, which shows nothing, and the list of its signals."""
    arrived = []
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
    job = Job(
        make_plan(LaunchConfig(("x",), 1), {}, {}),
        LaunchConfig(("x",), on_failure="continue"),
        [AgentSession(host, connection, b"", b"", 30.0)],
        signals,
        lambda on_shown: printer,
        **settings,
    )
    return job, arrived


@pytest.mark.parametrize(
    ("numbers", "detaches"),
    [
        ([signal.SIGHUP], True),
        ([signal.SIGHUP, signal.SIGTERM], False),
        ([signal.SIGTERM, signal.SIGHUP], False),
    ],
)
def test_a_job_ends_or_goes_on_but_not_both(numbers, detaches, readable_fd):
    other_fd = os.dup(readable_fd)
    connection = FakeConnection(other_fd)
    job, arrived = make_job(
        readable_fd,
        LOCALHOST,
        connection,
        record=SimpleNamespace(),
        takeover=Takeover(0.0, [(0.0, RankStarted(rank=0, pid=7))], []),
    )
    arrived.append(numbers)
    leftovers = job.run()
    if leftovers is None:
        job.detach()
    os.close(other_fd)
    assert (leftovers is None, connection.must_end) == (detaches, not detaches)


def test_a_host_that_is_no_longer_named_when_its_agent_is_ready_gets_no_rank(
    readable_fd,
):
    job, _ = make_job(readable_fd, LOCALHOST, FakeConnection(readable_fd))
    host = Host("late", 1)
    session = AgentSession(host, FakeConnection(readable_fd), b"", b"", 30.0)
    discarded = []
    job._discovery = SimpleNamespace(step=lambda: (Host("localhost", 1),))
    job._arrivals = SimpleNamespace(
        keep=lambda hosts: None,
        take=lambda: [Arrival(HostPlan(0, host, ()), session)],
        discard=discarded.append,
        is_due=lambda host: True,
        begin=lambda wanted, known: None,
    )
    job._look_for_hosts()
    assert discarded == [session]
    assert session not in job._sessions
