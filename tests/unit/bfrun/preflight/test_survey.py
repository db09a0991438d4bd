"""Hosts that are to take part in a job that runs already are checked."""

from dataclasses import dataclass, field, replace

import pytest

from bfrun.config import LaunchConfig
from bfrun.driver.host_arrivals import SurveyedHost
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.plan import HostPlan
from bfrun.preflight import survey
from bfrun.preflight.preflight import HostReport
from bfrun.preflight.survey import HostSurvey
from bfrun.preflight.this_machine import allowed_addresses

HERE, A, B, C = Host("here", 1), Host("a", 1), Host("b", 1), Host("c", 1)
CONFIG = LaunchConfig(("x",))


@dataclass
class Network:
    """Hosts that answer; each has one address, named after it.

    Attributes:
        broken: Hosts with a problem of their own.
        silent: Hosts that do not answer.
        cut: Pairs of hosts that do not reach each other.
        asked: The hosts of each pre-flight.
        launchers: How many launchers are open.
    """

    broken: dict = field(default_factory=dict)
    silent: tuple = ()
    cut: list = field(default_factory=list)
    asked: list = field(default_factory=list)
    local: tuple = ()
    open_launchers: int = 0

    def preflight(self, config, hosts, launcher, environ, *, tells_slow):
        assert launcher is self
        assert not tells_slow
        self.asked.append([host.name for host in hosts])
        return [self.report(host, hosts) for host in hosts]

    def report(self, host, hosts):
        if host in self.silent:
            return HostReport(host, problems=["no answer; check it"])
        answer = {"cpus": [0], "numa": [], "gpus": [], "addresses": []}
        found = HostReport(host, answer, addresses=(f"at-{host.name}",))
        if host in self.broken:
            found.problems.append(self.broken[host])
        others = [set(pair) - {host} for pair in self.cut if host in pair]
        if any(other <= set(hosts) for other in others):
            found.addresses = ()
            found.problems.append("not reached")
        return found

    def is_local(self, host):
        return host in self.local

    def open(self, config, hosts, known=None):
        self.open_launchers += 1
        return self

    def close(self):
        self.open_launchers -= 1


@pytest.fixture
def network(monkeypatch):
    network = Network()
    monkeypatch.setattr(survey, "run_preflight", network.preflight)
    monkeypatch.setattr(survey, "launcher_for", network.open)
    yield network
    assert network.open_launchers == 0


def known(*addresses):
    return [HostPlan(0, HERE, (), addresses)]


def ask(*new, addresses=("at-here",), config=CONFIG):
    """Return the addresses of hosts that may join, and why others may not."""
    found = HostSurvey({}).ask(config, known(*addresses), new)
    assert list(found) == [*new]
    return [
        one.addresses if isinstance(one, SurveyedHost) else str(one)
        for one in found.values()
    ]


def test_hosts_that_fit_are_asked_together(network):
    assert ask(A, B) == [("at-a",), ("at-b",)]
    assert network.asked == [["here", "a", "b"]]


def test_a_host_that_fails_does_not_keep_out_others(network):
    network.broken = {A: "no torch; install it"}
    assert ask(A, B, C) == ["no torch; install it", ("at-b",), ("at-c",)]
    # All together, and then those that may join.
    assert network.asked == [["here", "a", "b", "c"], ["here", "b", "c"]]


def test_hosts_are_asked_one_by_one_if_they_do_not_fit_without_the_broken_one(
    network, monkeypatch
):
    """Hosts b and c report no problem, but here only reaches one of them."""
    network.broken = {A: "no torch; install it"}
    report = network.report

    def only_one_is_reached(host, hosts):
        found = report(host, hosts)
        return replace(found, addresses=()) if {B, C} <= set(hosts) else found

    monkeypatch.setattr(network, "report", only_one_is_reached)
    first, second, third = ask(A, B, C)
    assert (first, second) == ("no torch; install it", ("at-b",))
    assert "does not reach the ranks on host 'here'" in third
    assert network.asked[1:] == [
        ["here", "b", "c"],
        ["here", "a"],
        ["here", "b"],
        ["here", "b", "c"],
    ]


def test_new_hosts_are_asked_once_if_a_host_of_the_job_does_not_answer(network):
    network.silent = (HERE,)
    text = "host 'here', which takes part: no answer; check it"
    assert ask(A, B) == [text, text]
    assert network.asked == [["here", "a", "b"]]


def test_hosts_that_take_part_are_resolved_once(network, monkeypatch):
    resolved = []

    def open_launcher(config, hosts, known):
        resolved.append(set(hosts) - set(known))
        return network.open(config, hosts)

    monkeypatch.setattr(survey, "launcher_for", open_launcher)
    one = HostSurvey({})
    for new in (A, B):
        one.ask(CONFIG, known("at-here"), [new])
    assert resolved == [{HERE, A}, {B}]


def test_a_silent_host_is_asked_only_once(network):
    network.silent = (A,)
    assert ask(A, B) == ["no answer; check it", ("at-b",)]
    assert network.asked == [["here", "a", "b"], ["here", "b"]]


def test_of_two_hosts_that_do_not_reach_each_other_one_joins(network):
    network.cut = [(A, B)]
    assert ask(A, B) == [("at-a",), "not reached"]


def test_a_problem_of_a_host_of_the_job_is_named(network):
    network.broken = {HERE: "no answer; raise --start-timeout"}
    (text,) = ask(A)
    assert text == ("host 'here', which takes part: no answer; raise --start-timeout")


def test_ranks_that_listen_elsewhere_are_not_reached(network):
    (text,) = ask(A, addresses=("10.0.0.1", "10.0.0.2"))
    assert (
        "it does not reach the ranks on host 'here', which listen at 10.0.0.1" in text
    )
    assert "open the firewall" in text
    assert ask(A, addresses=("10.0.0.1", "at-here")) == [("at-a",)]


def test_ranks_that_listen_only_at_loopback_are_not_reached(network):
    (text,) = ask(A, addresses=())
    assert "listen only at 127.0.0.1" in text
    assert "start the job again" in text


def test_an_error_of_the_settings_concerns_the_hosts_that_have_it(network, monkeypatch):
    def open_launcher(config, hosts, known):
        if A in hosts:
            raise LaunchError("host 'a' is not this machine; use --launcher ssh")
        return network.open(config, hosts)

    monkeypatch.setattr(survey, "launcher_for", open_launcher)
    first, second = ask(A, B)
    assert "use --launcher ssh" in first
    assert second == ("at-b",)


def test_this_machine_needs_no_probe(network):
    network.local = (HERE, A)
    assert ask(A, config=LaunchConfig(("x",), launcher="local")) == [()]
    assert network.asked == []


def test_nothing_is_asked_after_an_abort(network):
    aborted = HostSurvey({})
    aborted.abort()
    assert str(aborted.ask(CONFIG, known("at-here"), [A])[A]) == "the job ends"
    assert network.asked == []


def test_an_abort_closes_the_connections(network, monkeypatch):
    aborted, closed = HostSurvey({}), []

    def preflight(*arguments, **more):
        monkeypatch.setattr(network, "close", lambda: closed.append(True))
        aborted.abort()
        assert closed == [True]
        raise LaunchError("host 'a': the pre-flight's program ended")

    monkeypatch.setattr(survey, "run_preflight", preflight)
    assert "ended" in str(aborted.ask(CONFIG, known("at-here"), [A])[A])
    assert closed == [True, True]
    network.open_launchers = 0


def test_addresses_for_hosts_that_come_later():
    found = [["docker0", "172.17.0.1"], ["eth0", "10.0.0.1"], ["eth1", "10.1.0.1"]]

    def allowed(**settings):
        return allowed_addresses(LaunchConfig(("x",), **settings), found)

    assert allowed() == ("10.0.0.1", "10.1.0.1", "172.17.0.1")
    assert allowed(network_interface="eth1") == ("10.1.0.1",)
    assert allowed(launcher="local") == ()
