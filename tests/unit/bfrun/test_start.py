"""The addresses at which ranks listen."""

import pytest

from bfrun import start
from bfrun.config import LaunchConfig
from bfrun.hosts import LOCALHOST, Host
from bfrun.launch.choose import Choice
from bfrun.preflight.preflight import HostReport

A, B = Host("a", 1), Host("b", 1)


def report(host, *reached):
    answer = {"addresses": [["eth0", f"all-of-{host.name}"]]}
    return HostReport(host, answer, addresses=reached)


@pytest.fixture
def addresses(monkeypatch):
    """Return a function from settings, hosts and reports to addresses."""
    monkeypatch.setattr(start, "local_addresses", lambda config: ("own",))

    def find(hosts, reports=(), remote=(), **settings):
        config = LaunchConfig(("x",), hosts=hosts, **settings)
        choice = Choice(config, frozenset(remote), None)
        return start._addresses(choice, hosts, reports)

    return find


def test_other_hosts_reach_the_addresses_that_the_pre_flight_has_found(addresses):
    reports = [report(A, "at-a"), report(B, "at-b")]
    for script in (None, "hosts.sh"):
        found = addresses((A, B), reports, (A, B), host_discovery_script=script)
        assert found == {A: ("at-a",), B: ("at-b",)}


def test_one_host_needs_addresses_only_if_others_may_come(addresses):
    assert addresses((LOCALHOST,)) == {LOCALHOST: ()}
    assert addresses((A,), [report(A)], (A,)) == {A: ()}
    script = {"host_discovery_script": "hosts.sh"}
    assert addresses((LOCALHOST,), **script) == {LOCALHOST: ("own",)}
    assert addresses((A,), [report(A)], (A,), **script) == {A: ("all-of-a",)}


def test_a_dry_run_does_not_know_the_addresses_of_other_hosts(addresses):
    assert addresses((A,), (), (A,), host_discovery_script="hosts.sh") == {A: ()}
