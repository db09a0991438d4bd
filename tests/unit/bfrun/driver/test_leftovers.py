"""Processes that are left at the end of a job."""

from types import SimpleNamespace

import pytest

from bfrun.driver.leftovers import Leftovers, await_guards
from bfrun.hosts import Host


def session(host, *, ended=False, silent=False, status=0):
    """Return the session of an agent whose guard has this exit status."""
    connection = SimpleNamespace(wait=lambda timeout_s: status)
    return SimpleNamespace(
        host=Host(host, 1), ended=ended, silent=silent, connection=connection
    )


def test_silent_hosts_are_named():
    text = str(Leftovers(2, {"a": 0}, ["b"]))
    assert text.startswith("0 processes left on 1 host; b cannot be reached")


def test_without_hosts_leftovers_are_unknown():
    assert str(Leftovers(0, {})) == "no host reported whether processes are left"


def test_a_guard_that_does_not_end_counts_as_a_process():
    ended = session("a", ended=True, status=None)
    left = await_guards([ended, session("b", ended=True)], {"a": 2, "b": 0}, 6.0)
    assert left == Leftovers(2, {"a": 3, "b": 0}, [])


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "0 processes left on 1 host"),
        (None, "0 processes left on 0 hosts; b cannot be reached"),
    ],
)
def test_a_host_that_came_back_is_reported_by_its_newest_agent(status, text):
    """The first agent cannot be reached, and in one case the second cannot either."""
    agents = [
        session("b", silent=True, status=None),
        session("b", silent=status is None, status=status),
    ]
    assert str(await_guards(agents, {}, 6.0)).startswith(text)
