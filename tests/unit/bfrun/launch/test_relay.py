"""The program that connects a driver with an agent of another host, run on this one."""

import contextlib
import socket
import subprocess
import sys
import time

import pytest

from bfrun.agent.kernel import machine_id
from bfrun.config import LaunchConfig
from bfrun.hosts import LOCALHOST
from bfrun.launch.bootstrap import MarkerFilter
from bfrun.launch.relay import AgentAddress, reach_agent
from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.launch import ROOT

NAMED = """
from bfrun.agent.kernel import set_name
set_name("bfrun-agent")
print("up", flush=True)
input()
"""


@pytest.fixture
def listener(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(tmp_path / "driver"))
        made.listen()
        made.settimeout(DEADLINE_S)
        yield made


@pytest.fixture
def agent():
    """A process with the name of an agent, which ends when its input does."""
    with subprocess.Popen(
        [sys.executable, "-c", NAMED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


@contextlib.contextmanager
def reached(path, pids, machine=None):
    """Start a relay; yields functions that send to the agent and receive from it."""
    own = machine_id() if machine is None else machine
    address = AgentAddress(LOCALHOST, False, sys.executable, path, own, pids)
    found = reach_agent(address, LaunchConfig(("x",)))
    connection, skip = found.connection, MarkerFilter(found.marker)
    rest = memoryview(found.archive)
    while rest:
        rest = rest[connection.send(rest) :]

    def receive():
        """Return the next bytes of the agent, or b"" at the end."""
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            data = connection.receive(1 << 16)
            if data == b"" or (data and (data := skip.feed(data))):
                return data
            time.sleep(0.01)
        raise AssertionError("the relay sends nothing")

    connection.take = receive
    try:
        yield connection
    finally:
        connection.close()


def test_a_relay_passes_bytes_both_ways(listener, agent):
    with reached(listener.getsockname(), (agent.pid,)) as relay:
        there, _ = listener.accept()
        with there:
            there.settimeout(DEADLINE_S)
            relay.send(b"attach")
            assert there.recv(99) == b"attach"
            there.sendall(b"ready")
            assert relay.take() == b"ready"
            relay.close()
            assert there.recv(99) == b""  # the agent learns that the driver has left


def test_a_relay_says_when_the_agent_has_ended(listener, agent):
    with reached(listener.getsockname(), (agent.pid,)) as relay:
        there, _ = listener.accept()
        there.close()
        assert relay.take() == b""
        assert relay.wait(0.0) is None  # it has hung up, but lives
        agent.kill()  # at once, because the relay looks for 10 s only
        assert agent.wait(DEADLINE_S) is not None
        wait_until(lambda: relay.wait(0.0) == 0, "the relay does not tell the end")


def test_a_process_that_has_the_number_of_an_agent_is_none(tmp_path):
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            with reached(str(tmp_path / "driver"), (other.pid,)) as relay:
                assert relay.take() == b""
                wait_until(lambda: relay.wait(0.0) == 0, "it counts as an agent")
                assert "its socket cannot be reached" in relay.diagnosis()
        finally:
            other.kill()


def test_another_machine_proves_nothing(listener):
    with reached(listener.getsockname(), (), machine="other") as relay:
        assert relay.take() == b""
        wait_until(lambda: "another machine" in relay.diagnosis(), "no error")
        assert relay.wait(DEADLINE_S) is None
