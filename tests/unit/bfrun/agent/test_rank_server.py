import os
import select
import selectors
import socket
import subprocess
import sys

import pytest

from bfrun.agent.rank_server import RankServer
from bfrun.channel import MessageParser, encode
from bfrun.frames.rank_to_agent import Hello
from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.frames import make_welcome


class Agent:
    """Just enough of an agent to run the server, one turn at a time."""

    def __init__(self, folder):
        self.selector = selectors.DefaultSelector()
        self.frames = []
        self.server = RankServer(
            str(folder), self.selector, self.hello, lambda *f: self.frames.append(f), []
        )

    def hello(self, rank, pid):
        return make_welcome(machine=str(pid)) if rank < 2 else f"rank {rank}?"

    def serve(self, turns=5):
        for _ in range(turns):
            for key, mask in self.selector.select(0.01):
                key.data(mask)


class Client:
    def __init__(self, agent):
        self.agent, self.parser = agent, MessageParser()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(agent.server.path)
        self.socket.settimeout(DEADLINE_S)

    def ask(self, data):
        self.socket.sendall(data)
        self.agent.serve()
        return self.read()

    def read(self):
        return self.parser.feed(self.socket.recv(1 << 16))


@pytest.fixture
def agent(tmp_path):
    made = Agent(tmp_path)
    yield made
    made.server.close()
    made.selector.close()


def hello(rank):
    return encode(Hello(rank=rank, pid=1).to_message())


def test_the_socket_may_have_been_removed(agent):
    os.unlink(agent.server.path)


def test_a_welcome_then_frames_both_ways(agent):
    client = Client(agent)
    (welcome,) = client.ask(hello(1))
    assert (welcome["type"], welcome["machine"]) == ("welcome", str(os.getpid()))
    client.socket.sendall(encode({"type": "goodbye"}))
    agent.serve()
    assert agent.frames == [(1, {"type": "goodbye"})]
    agent.server.send([1], {"type": "lost"})
    agent.server.send([0], {"type": "nobody is there"})
    assert client.read() == [{"type": "lost"}]
    client.socket.close()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (hello(5), "rank 5?"),
        (
            encode({"type": "publish"}),
            f"process {os.getpid()} sent the frame 'publish', which a rank never sends",
        ),
        (
            encode({"type": "hello", "rank": "1", "pid": 1}),
            "sent an invalid 'hello': field 'rank' is '1', expected an integer",
        ),
    ],
    ids=["unknown-rank", "unexpected-frame", "invalid-field"],
)
def test_a_refused_process_gets_the_reason_and_a_closed_connection(agent, data, text):
    client = Client(agent)
    (frame,) = client.ask(data + data)
    assert frame["type"] == "refused"
    assert text in frame["error"]
    assert client.socket.recv(10) == b""
    client.socket.close()


@pytest.mark.parametrize("data", [b"\xff" * 8, encode({"type": "x"})[:4] + b"[" * 20])
def test_a_process_that_sends_garbage_is_disconnected(agent, data):
    client, other = Client(agent), Client(agent)
    client.socket.sendall(data)
    agent.serve()
    assert client.socket.recv(10) == b""
    assert other.ask(hello(0))[0]["type"] == "welcome"
    for each in (client, other):
        each.socket.close()


def test_the_same_process_may_come_again(agent):
    first, second = Client(agent), Client(agent)
    first.ask(hello(0))
    assert second.ask(hello(0))[0]["type"] == "welcome"
    assert first.socket.recv(10) == b""
    for each in (first, second):
        each.socket.close()


def answers(file):
    return select.select([file], [], [], 0)[0]


def test_another_process_is_refused_while_the_first_lives(agent):
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(bytes.fromhex(sys.argv[2])); print(s.recv(999)); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", program, agent.server.path, hello(0).hex()]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes) as first:
        wait_until(lambda: agent.serve() or answers(first.stdout), "no answer")
        assert b"welcome" in first.stdout.readline()
        client = Client(agent)
        (frame,) = client.ask(hello(0))
        assert frame["type"] == "refused"
        assert f"process {os.getpid()} claims rank 0" in frame["error"]
        assert f"which process {first.pid} already has" in frame["error"]
        first.stdin.close()
        first.wait(DEADLINE_S)
    client.socket.close()
    client = Client(agent)
    assert client.ask(hello(0))[0]["type"] == "welcome"
    client.socket.close()


def test_the_last_messages_of_an_ended_rank_are_read(agent):
    client = Client(agent)
    client.ask(hello(0))
    client.socket.sendall(encode({"type": "goodbye"}))
    client.socket.close()
    agent.server.drop_rank(0)
    assert agent.frames == [(0, {"type": "goodbye"})]


def test_a_frame_to_an_ended_rank_does_not_lose_its_last_messages(agent):
    client = Client(agent)
    client.ask(hello(0))
    client.socket.sendall(encode({"type": "goodbye"}))
    client.socket.close()
    for _ in range(2):
        agent.server.send([0], {"type": "finished"})
    assert agent.frames == []
    agent.serve()
    assert agent.frames == [(0, {"type": "goodbye"})]


def test_much_for_a_slow_reader_waits(agent):
    client = Client(agent)
    client.ask(hello(0))
    for _ in range(20):
        agent.server.send([0], {"type": "x", "data": "y" * 100_000})
    got = []
    while len(got) < 20:
        agent.serve(1)
        got += client.read()
    assert {len(frame["data"]) for frame in got} == {100_000}
    client.socket.close()
