"""How a driver looks for an agent whose connection has ended."""

import threading
from types import SimpleNamespace

import pytest

from bfrun.driver.agent_search import AgentSearch, LostAgents, SearchResult
from bfrun.errors import LaunchError
from bfrun.launch.relay import ReachedAgent
from tests.support.deadlines import DEADLINE_S

LIMIT_S = 100.0
HOST = SimpleNamespace(name="b")


class FakeSession:
    """A session whose state the test sets."""

    def __init__(self):
        self.host, self.lost, self.ended = HOST, "its connection ended", False
        self.has_surely_ended = self.is_reached = False
        self.renewed = []

    def why_lost(self):
        return self.lost

    def renew(self, reached, key):
        self.renewed.append((reached, key))
        self.lost = ""

    def give_up(self, reason):
        self.lost = reason


class Clock:
    """Time that passes when the test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Network:
    """Reaches the agent when the test lets it; notes attempts and what is closed."""

    def __init__(self):
        self.attempts = 0
        self.closed = []
        self.is_cut = True
        self.go_on = threading.Event()
        self.go_on.set()
        self.woken = threading.Semaphore(0)

    def reach(self):
        self.attempts += 1
        attempt = self.attempts
        assert self.go_on.wait(DEADLINE_S)
        if self.is_cut:
            raise LaunchError("host 'b' cannot be reached")
        connection = SimpleNamespace(close=lambda: self.closed.append(attempt))
        return ReachedAgent(connection, b"", b"")


@pytest.fixture
def case():
    session, clock, network = FakeSession(), Clock(), Network()
    search = AgentSearch(
        session, network.reach, "k", LIMIT_S, network.woken.release, clock
    )
    return SimpleNamespace(session=session, clock=clock, network=network, search=search)


def attempt(case, after_s):
    """Let one attempt begin after a wait and end; return what is known then."""
    before = case.network.attempts
    case.clock.now += after_s
    assert case.search.step(case.clock.now) is SearchResult.UNKNOWN
    assert case.network.woken.acquire(timeout=DEADLINE_S)
    assert case.network.attempts == before + 1
    return case.search.step(case.clock.now)


def test_the_waits_between_attempts_grow(case):
    assert case.search.step(0.4) is SearchResult.UNKNOWN
    assert case.network.attempts == 0
    for wait_s in (0.5, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        case.search.step(case.clock.now + 0.9 * wait_s)
        assert attempt(case, wait_s) is SearchResult.UNKNOWN
    assert case.search.error == "host 'b' cannot be reached"
    assert case.search.step(LIMIT_S) is SearchResult.GIVEN_UP


def test_an_agent_that_is_reached_is_asked_once(case):
    case.network.is_cut = False
    attempt(case, 0.5)
    ((reached, key),) = case.session.renewed
    assert isinstance(reached, ReachedAgent)
    assert key == "k"
    # It has its own time for the answer, also at the end of the search.
    assert case.search.step(20.0) is SearchResult.UNKNOWN
    assert case.session.lost == ""
    assert case.network.attempts == 1


def test_an_agent_that_hangs_up_or_does_not_answer_is_asked_again(case):
    case.network.is_cut = False
    attempt(case, 0.5)
    case.session.lost = "its connection ended"
    case.search.step(case.clock.now)
    attempt(case, 0.5)
    assert len(case.session.renewed) == 2
    case.clock.now += 31.0
    case.search.step(case.clock.now)
    assert case.session.lost == "it did not answer within 30 s"
    case.search.step(case.clock.now)
    attempt(case, 1.0)
    assert len(case.session.renewed) == 3


def test_the_proof_that_an_agent_has_ended_ends_the_search(case):
    case.session.has_surely_ended = True
    assert case.search.step(0.0) is SearchResult.GONE
    assert case.network.attempts == 0


def test_a_connection_that_comes_too_late_is_closed(case):
    case.network.is_cut = False
    case.network.go_on.clear()
    case.search.step(0.5)
    thread = case.search._thread
    case.search.close()
    case.network.go_on.set()
    thread.join(DEADLINE_S)
    assert case.network.closed == [1]
    assert case.session.renewed == []
    assert not case.network.woken.acquire(blocking=False)


def test_a_connection_that_nobody_has_taken_is_closed(case):
    case.network.is_cut = False
    case.search.step(0.5)
    assert case.network.woken.acquire(timeout=DEADLINE_S)
    case.search.close()
    assert case.network.closed == [1]


class FakeSearch:
    """A search whose result the test sets."""

    def __init__(self):
        self.result, self.closed, self.error = SearchResult.UNKNOWN, False, ""

    def step(self, now):
        return self.result

    def close(self):
        self.closed = True


@pytest.fixture
def lost():
    session, made, ends, said = FakeSession(), [], [], []

    def make(session):
        made.append(FakeSearch())
        return made[-1]

    def end_ranks(ranks, reason, noticed_after_s, *, is_certain):
        ends.append((ranks, reason, is_certain))

    agents = LostAgents(make, end_ranks, said.append)
    return SimpleNamespace(
        session=session, made=made, ends=ends, said=said, agents=agents
    )


def test_ranks_go_on_while_their_agent_is_looked_for(lost):
    for _ in range(2):
        lost.agents.step(lost.session, [2, 3], 0.0)
    assert len(lost.made) == 1
    (text,) = lost.said
    assert "the connection to b is lost: its connection ended; ranks 2-3 go on" in text
    assert lost.agents.ranks == {2, 3}
    assert lost.ends == []
    lost.made[0].error = "no route"
    for _ in range(2):
        lost.agents.step(lost.session, [2, 3], 0.0)
    assert lost.said[1:] == ["bfrun: b cannot be reached again yet: no route"]
    lost.session.lost, lost.session.is_reached = "", True
    assert lost.agents.is_back(lost.session)
    assert not lost.agents.is_back(lost.session)
    assert lost.agents.ranks == frozenset()
    assert lost.made[0].closed
    lost.session.lost = "it was silent"
    lost.agents.step(lost.session, [2, 3], 0.0)
    assert len(lost.made) == 2


@pytest.mark.parametrize(
    ("result", "is_certain"),
    [(SearchResult.GONE, True), (SearchResult.GIVEN_UP, False)],
)
def test_ranks_are_lost_once_their_agent_is_given_up(lost, result, is_certain):
    lost.agents.step(lost.session, [2, 3], 0.0)
    lost.made[0].result = result
    for _ in range(2):
        lost.agents.step(lost.session, [2, 3], 0.0)
    ((ranks, reason, certain),) = lost.ends
    assert (ranks, certain) == ([2, 3], is_certain)
    assert ("cannot be reached" in reason) != is_certain
    assert len(lost.made) == 1
    assert lost.made[0].closed


def test_agents_that_have_ended_their_work_are_not_looked_for(lost):
    lost.session.ended = True
    lost.agents.step(lost.session, [2, 3], 0.0)
    assert lost.made == []
