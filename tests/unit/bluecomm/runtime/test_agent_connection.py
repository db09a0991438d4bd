"""A rank's connection to its agent, tested against a minimal agent."""

import os
import socket
import threading

import pytest

from bfrun.channel import MessageParser, encode
from bfrun.frames.agent_to_rank import Refused
from bfrun.frames.driver_to_rank import QueryPending, RecordList, RecordsMissing
from bluecomm.errors import BluecommError, CommunicationTimeout
from bluecomm.runtime.rendezvous.agent_connection import AgentConnection, AgentLost
from tests.support.deadlines import DEADLINE_S
from tests.support.frames import make_welcome

WELCOME = make_welcome(rank=3)


class Agent:
    """Accepts one connection and answers its first frame."""

    def __init__(self, folder, *answers):
        self.path = str(folder / "agent")
        self._answers = answers
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._connection = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        self._connection, _ = self._listener.accept()
        self.hello = MessageParser().feed(self._connection.recv(4096))[0]
        for frame in self._answers:
            self.send(frame)

    def send(self, frame):
        self._connection.sendall(encode(frame.to_message()))

    def hang_up(self):
        self._thread.join()
        self._connection.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._thread.join()
        self._connection.close()
        self._listener.close()


@pytest.fixture
def start(tmp_path):
    opened = []

    def run(*answers, timeout_s=DEADLINE_S):
        agent = Agent(tmp_path, *answers)
        opened.append(agent)
        link = AgentConnection(agent.path, 3, timeout_s)
        opened.append(link)
        return agent, link

    yield run
    for one in reversed(opened):
        one.close()


def collected(link):
    """Subscribe a list; return it and a function that waits for its n-th frame."""
    frames, came = [], threading.Condition()

    def listen(frame):
        with came:
            frames.append(frame)
            came.notify_all()

    def wait_for(count):
        with came:
            assert came.wait_for(lambda: len(frames) >= count, DEADLINE_S)
        return frames

    link.news.listen(listen)
    return wait_for


def test_it_says_hello_and_is_welcomed(start):
    agent, link = start(WELCOME)
    assert link.welcome == WELCOME
    assert agent.hello["type"] == "hello"
    assert (agent.hello["rank"], agent.hello["pid"]) == (3, os.getpid())


def test_a_refusal_is_an_error(start):
    with pytest.raises(
        BluecommError, match=r"refused by the agent .*: rank 3 is taken"
    ):
        start(Refused(error="rank 3 is taken"))


def test_an_agent_that_hangs_up(start):
    agent, link = start(WELCOME)
    agent.hang_up()
    with pytest.raises(BluecommError, match=r"closed the connection|is lost"):
        link.exchange({}, 0, DEADLINE_S)


def test_an_agent_that_does_not_answer(start):
    with pytest.raises(CommunicationTimeout, match=r"no answer \(welcome\) .* 0.1 s"):
        start(timeout_s=0.1)


def test_no_agent(tmp_path):
    with pytest.raises(BluecommError, match=r"cannot reach the agent .* still running"):
        AgentConnection(str(tmp_path / "none"), 3, 1.0)


def test_rounds_are_kept_apart(start):
    later = RecordList(round=1, records=[{"b": 2}])
    first = RecordList(round=0, records=[{"a": 1}])
    _, link = start(WELCOME, later, first)
    assert link.exchange({}, 0, DEADLINE_S) == [{"a": 1}]
    assert link.exchange({}, 1, DEADLINE_S) == [{"b": 2}]


def test_missing_ranks_are_named(start):
    missing = RecordsMissing(round=0, ranks=[1, 2], text="ranks 1, 2")
    _, link = start(WELCOME, missing)
    with pytest.raises(CommunicationTimeout, match="init on rank 3: ranks 1, 2") as e:
        link.exchange({}, 0, DEADLINE_S)
    assert e.value.peers == (1, 2)


def test_frames_wait_for_a_listener_in_order(start):
    news = [QueryPending(id=number) for number in range(3)]
    agent, link = start(WELCOME, *news[:2])
    wait_for = collected(link)
    assert wait_for(2) == news[:2]
    agent.send(news[2])
    assert wait_for(3) == news


def test_the_end_of_the_agent_is_reported(start):
    agent, link = start(WELCOME)
    wait_for = collected(link)
    agent.hang_up()
    assert wait_for(1) == [AgentLost("the agent of this machine closed the connection")]


def test_malformed_frames_end_the_connection(start):
    agent, link = start(WELCOME)
    wait_for = collected(link)
    agent._connection.sendall(b"\x00\x00\x00\x04nope")
    assert "broke: " in wait_for(1)[0].text


def test_frames_that_nobody_sends_to_ranks_end_the_connection(start):
    agent, link = start(WELCOME)
    wait_for = collected(link)
    agent._connection.sendall(encode({"type": "start"}))
    assert wait_for(1)[0].text == (
        "the connection to the agent of this machine broke: the agent sent the frame "
        "'start', which an agent or the driver never sends to a rank; install one "
        "version of bluecomm and bfrun on all hosts"
    )
