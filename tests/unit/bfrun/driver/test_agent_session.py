"""Frames for an agent that has not accepted the driver yet."""

from types import SimpleNamespace

from bfrun.channel import MessageParser, encode
from bfrun.driver.agent_session import AgentSession
from bfrun.frames.agent_to_driver import Attached
from bfrun.frames.driver_to_agent import Attach, EndRanks
from bfrun.hosts import LOCALHOST
from bfrun.launch.relay import ReachedAgent


class FakeConnection:
    """Takes all bytes; ``arriving`` is what the agent sends next."""

    def __init__(self, archive=b""):
        self.archive, self.parser = archive, MessageParser()
        self.kinds, self.arriving, self.status = [], None, None
        self.is_closed = False

    def send(self, data):
        rest = bytes(data)
        nbytes = min(len(self.archive), len(rest))
        assert rest[:nbytes] == self.archive[:nbytes]
        self.archive = self.archive[nbytes:]
        self.kinds += [each["type"] for each in self.parser.feed(rest[nbytes:])]
        return len(rest)

    def receive(self, nbytes):
        data, self.arriving = self.arriving, None
        return data

    def wait(self, timeout_s):
        return self.status

    def diagnosis(self):
        return ""

    def leave(self):
        self.is_closed = True


def test_an_agent_gets_nothing_before_it_has_taken_the_driver():
    connection = FakeConnection()
    session = AgentSession.attach(LOCALHOST, connection, "k", 30.0)
    session.send(EndRanks())
    for _ in range(2):
        session.flush()
    assert connection.kinds == [Attach.kind]
    assert not session.is_reached
    connection.arriving = encode(Attached(age_s=1.0).to_message())
    assert session.receive() == []
    assert session.is_reached
    session.send(EndRanks())
    session.flush()
    assert connection.kinds[1] == EndRanks.kind


def test_a_lost_session_goes_on_over_another_connection():
    first, second = FakeConnection(), FakeConnection(b"zip")
    session = AgentSession.attach(LOCALHOST, first, "k", 30.0)
    first.arriving = encode(Attached(age_s=1.0).to_message())
    session.receive()
    first.arriving = b""
    session.receive()
    assert session.lost == "its connection ended"
    session.renew(ReachedAgent(second, b"--", b"zip"), "k")
    assert first.is_closed
    assert (session.lost, session.started, session.is_reached) == ("", None, False)
    session.flush()
    assert second.kinds == [Attach.kind]
    second.arriving = b"banner --" + encode(Attached(age_s=2.0).to_message())
    session.receive()
    assert session.is_reached


def test_only_the_exit_status_of_a_guard_proves_the_end_of_its_agent():
    connection = FakeConnection()
    session = AgentSession(LOCALHOST, connection, b"", b"", 30.0)
    connection.status = 0
    assert not session.has_surely_ended  # its last frames may still come
    connection.arriving = b""
    session.receive()
    for status, proves in ((None, False), (-9, False), (0, True), (137, True)):
        connection.status = status
        assert session.has_surely_ended == proves


def test_an_agent_that_was_not_reached_is_lost_but_has_not_ended():
    session = AgentSession.unreached(SimpleNamespace(name="b"), "no route", 30.0)
    assert session.lost == "no route"
    assert session.why_lost() == "no route"
    assert not session.has_surely_ended
    session.close()
