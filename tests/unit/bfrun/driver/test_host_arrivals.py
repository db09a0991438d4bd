"""Hosts that are added to a running job, with real agents on this machine."""

import re
import threading

import pytest

from bfrun.config import LaunchConfig
from bfrun.driver import host_arrivals
from bfrun.driver.host_arrivals import HostArrivals, SurveyedHost
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.local import LocalLauncher
from bfrun.plan import HostFacts, HostPlan
from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.stand_in import replace_in

A, B = Host("a", 1), Host("b", 2)
KNOWN = [HostPlan(0, Host("here", 3), (), slots=3)]
FOUND = SurveyedHost(HostFacts((0, 1)), ("10.0.0.1",))


class Survey:
    """Gives prepared answers, when it may."""

    def __init__(self):
        self.answers = {A: FOUND, B: FOUND}
        self.asked = []
        self.asking = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_aborted = False

    def ask(self, config, known, new):
        self.asked.append((known, new))
        self.asking.set()
        assert self.may_answer.wait(DEADLINE_S)
        return self.answers

    def abort(self):
        self.is_aborted = True


class Launcher(LocalLauncher):
    """Starts agents on this machine, or programs that are none."""

    def __init__(self, bench):
        self.bench = bench
        self.is_closed = False

    def start(self, host, argv, timeout_s):
        self.bench.starting.set()
        assert self.bench.may_start.wait(DEADLINE_S)
        link = super().start(host, self.bench.programs.get(host, argv), timeout_s)
        self.bench.links.append(link)
        return link

    def close(self):
        self.is_closed = True


class Bench:
    """Arrivals with a prepared survey, and a clock that stands still."""

    def __init__(self, **settings):
        self.now = 0.0
        self.said, self.links, self.launchers, self.taken = [], [], [], []
        self.programs = {}
        self.survey = Survey()
        self.woken, self.starting, self.may_start = (
            threading.Event() for _ in range(3)
        )
        self.may_start.set()
        self.arrivals = HostArrivals(
            LaunchConfig(("x",), **settings),
            self.survey,
            self.said.append,
            self.woken.set,
            self.make_launcher,
            lambda: self.now,
        )

    def make_launcher(self, config, hosts):
        self.launchers.append(Launcher(self))
        return self.launchers[-1]

    def add(self, *wanted):
        """Add hosts, and wait until each has arrived or failed."""
        news = len(self.taken) + len(self.said) + len(wanted)
        self.begin(*wanted)

        def look():
            self.taken += self.arrivals.take()
            return len(self.taken) + len(self.said) >= news

        wait_until(look, lambda: f"{self.taken} {self.said}")

    def begin(self, *wanted):
        """Begin to add hosts, and wait until they are being checked."""
        if self.arrivals._thread is not None:
            self.arrivals._thread.join(DEADLINE_S)
        self.survey.asking.clear()
        self.arrivals.begin(wanted, KNOWN)
        assert self.survey.asking.wait(DEADLINE_S)

    def have_ended(self):
        """Return whether the guard of each agent has ended after its processes."""
        return all(link.wait(0.0) is not None for link in self.links)


@pytest.fixture
def make_bench():
    made = []

    def make(**settings):
        made.append(Bench(**settings))
        return made[-1]

    yield make
    for bench in made:
        bench.survey.may_answer.set()
        bench.may_start.set()
        bench.arrivals.close()
        for arrival in bench.taken:
            arrival.session.close()
        wait_until(bench.have_ended, "an agent is left")


@pytest.fixture
def bench(make_bench):
    return make_bench()


def test_hosts_are_checked_together_and_their_agents_are_handed_over(bench):
    bench.add(A, B)
    assert bench.survey.asked == [(KNOWN, [A, B])]
    assert bench.woken.is_set()
    assert bench.said == []
    assert {one.plan.host: one.plan.slots for one in bench.taken} == {A: 1, B: 2}
    for arrival in bench.taken:
        assert arrival.plan.addresses == FOUND.addresses
        assert arrival.session.ready.agent_pid > 0
        assert not arrival.session.lost
    bench.arrivals.close()
    assert all(launcher.is_closed for launcher in bench.launchers)


def test_a_host_that_fails_its_check_does_not_keep_out_others(bench):
    bench.survey.answers[A] = LaunchError("host 'a': it has no torch\ninstall it")
    bench.add(A, B)
    assert [arrival.plan.host for arrival in bench.taken] == [B]
    assert bench.said == [
        "bfrun: warning: host a gets no ranks: it has no torch; install it; trying it "
        "again in 10 s, and later less often"
    ]
    assert not bench.arrivals.is_due(A)
    assert bench.arrivals.is_due(B)
    bench.now = 10.0
    assert bench.arrivals.is_due(A)


def test_a_program_that_is_no_agent_is_told_and_ended(bench):
    bench.programs[A] = ["/bin/sh", "-c", "echo no agent here >&2"]
    bench.add(A)
    (text,) = bench.said
    assert "host a gets no ranks: the agent did not start: " in text
    assert "no agent here" in text
    assert bench.launchers[0].is_closed


def test_an_agent_that_takes_too_long_is_ended(make_bench):
    bench = make_bench(start_timeout_s=1.0)
    bench.programs[A] = ["/bin/sh", "-c", "while read -r line; do :; done"]
    bench.begin(A)
    wait_until(lambda: bench.links, "nothing is started")

    def look():
        bench.now += 1.0
        return bench.arrivals.take() or bench.said

    wait_until(look, "no warning")
    assert re.search("no (answer|connection) within 1 s", bench.said[0])
    wait_until(bench.have_ended, "the program is left")


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"gpus_per_rank": 1}, "host 'b' needs 2 GPUs for 2 ranks, but it has 0"),
        ({"output_dir": "logs"}, "--output-dir: writing logs of 5 ranks"),
    ],
)
def test_a_host_that_lacks_something_gets_no_agent(
    make_bench, setting, text, monkeypatch
):
    monkeypatch.setattr("bfrun.driver.capacity._OWN_FILES", 1 << 60)
    bench = make_bench(**setting)
    bench.add(B)
    assert text in bench.said[0]
    assert bench.links == []


def test_limits_of_the_host_are_checked(bench, monkeypatch):
    def refuse(plan, sessions):
        raise LaunchError("host 'a': too many open files; raise it")

    monkeypatch.setattr("bfrun.driver.host_arrivals.check_capacity", refuse)
    bench.add(A)
    assert "host a gets no ranks: too many open files; raise it" in bench.said[0]
    wait_until(bench.have_ended, "the agent is left")


def test_a_defect_is_told_and_does_not_end_the_search(bench):
    del bench.survey.answers[A]
    bench.add(A)
    assert "host a gets no ranks" in bench.said[0]
    bench.survey.answers[A] = FOUND
    bench.add(A)
    assert [arrival.plan.host for arrival in bench.taken] == [A]


def test_one_group_is_added_at_a_time(bench):
    bench.survey.may_answer.clear()
    bench.begin(A)
    bench.arrivals.begin([B], [])
    bench.survey.may_answer.set()
    thread = bench.arrivals._thread
    thread.join(DEADLINE_S)
    # The driver has not taken the host yet, so it still counts it as missing.
    bench.arrivals.begin([A], [])
    assert bench.survey.asked == [(KNOWN, [A])]


def test_a_lost_agent_is_told_and_its_host_tried_again(bench):
    bench.add(A)
    bench.arrivals.lost(A, "its connection ended")
    assert bench.said[0].startswith(
        "bfrun: warning: host a gets no ranks: its agent is lost: its connection ended;"
    )
    assert not bench.arrivals.is_due(A)
    bench.arrivals.keep([B])
    assert bench.arrivals.is_due(A)


def test_a_check_that_fails_after_its_host_is_named_no_longer_is_not_told(bench):
    bench.survey.answers[A] = LaunchError("host 'a': it has no torch")
    bench.add(A)
    bench.now = 10.0
    bench.survey.may_answer.clear()
    bench.begin(A)
    bench.arrivals.keep([B])
    bench.survey.may_answer.set()
    bench.arrivals._thread.join(DEADLINE_S)
    assert bench.arrivals.take() == []
    assert len(bench.said) == 1, bench.said


def test_the_end_of_the_job_during_a_check_starts_no_agent(bench):
    bench.survey.may_answer.clear()
    bench.begin(A)
    thread = bench.arrivals._thread
    bench.survey.abort = bench.survey.may_answer.set
    bench.arrivals.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert bench.launchers == []
    assert not bench.woken.is_set()


def test_the_end_of_the_job_ends_agents_that_are_being_started(bench, monkeypatch):
    monkeypatch.setattr("bfrun.driver.host_arrivals._END_S", 0.0)
    bench.may_start.clear()
    bench.begin(A)
    assert bench.starting.wait(DEADLINE_S)
    thread = bench.arrivals._thread
    bench.arrivals.close()
    assert bench.survey.is_aborted
    bench.may_start.set()
    thread.join(DEADLINE_S)
    wait_until(lambda: bench.links and bench.have_ended(), "the agent is left")
    assert bench.arrivals.take() == []
    assert not bench.woken.is_set()


def test_the_end_of_the_job_ends_agents_that_nobody_has_taken(bench):
    bench.begin(A)
    assert bench.woken.wait(DEADLINE_S)
    bench.arrivals.close()
    wait_until(bench.have_ended, "the agent is left")
    assert bench.arrivals.take() == []


def test_a_lost_agent_is_released_once_its_guard_has_had_time_to_end(bench):
    bench.add(A)
    session = bench.taken[0].session
    close, closed = session.close, []
    session.close = lambda: (closed.append(True), close())
    for bench.now in (0.0, 59.0):
        bench.arrivals.release(session)
        assert session in bench.arrivals._launchers
    for bench.now in (60.0, 200.0):
        bench.arrivals.release(session)
    wait_until(lambda: bench.launchers[0].is_closed, "the launcher stays open")
    assert closed == [True]
    wait_until(bench.have_ended, "the agent is left")


def test_the_warning_about_a_lost_agent_is_one_line(bench):
    bench.arrivals.lost(A, "it said: one\ntwo")
    assert "its agent is lost: it said: one; two; trying" in bench.said[0]


def test_the_logs_of_all_hosts_of_a_group_are_counted(make_bench, monkeypatch):
    asked = []
    monkeypatch.setattr("bfrun.driver.host_arrivals.make_room_for_logs", asked.append)
    make_bench(output_dir="logs").add(A, B)
    assert asked == [3 + 1, 3 + 1 + 2]


def test_a_machine_without_threads_does_not_end_the_job(bench, monkeypatch):
    class Refused(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        replace_in(patch, host_arrivals, "threading", Thread=Refused)
        bench.arrivals.begin([A], KNOWN)
    assert "host a gets no ranks: can't start new thread" in bench.said[0]
    bench.now = 10.0
    bench.add(A)
