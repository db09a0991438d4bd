"""When a host that could not take part in the job is tried again."""

import pytest

from bfrun.driver.host_retries import FIRST_WAIT_S, LONGEST_WAIT_S, HostRetries
from bfrun.hosts import Host

A = Host("a", 2)


@pytest.fixture
def retries():
    return HostRetries()


def test_the_wait_doubles_up_to_a_limit(retries):
    assert retries.is_due(A, 0.0)
    now, waits = 0.0, []
    for _ in range(7):
        retries.failed(A, "no route", now)
        before, now = now, now + 0.5
        while not retries.is_due(A, now):
            now += 0.5
        waits.append(now - before)
    assert waits[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert waits[-2:] == 2 * [LONGEST_WAIT_S]


def test_the_user_learns_each_reason_once(retries):
    assert retries.failed(A, "no route", 0.0) == FIRST_WAIT_S
    assert retries.failed(A, "no route", 10.0) is None
    assert retries.failed(A, "no torch", 30.0) == 4 * FIRST_WAIT_S
    retries.arrived(A, 100.0)
    assert retries.failed(A, "no torch", 101.0) == 8 * FIRST_WAIT_S


def test_the_number_of_slots_does_not_matter_but_the_user_does(retries):
    retries.failed(A, "no route", 0.0)
    assert not retries.is_due(Host("a", 3), 1.0)
    assert retries.is_due(Host("a", 2, "root"), 1.0)


def test_a_host_that_is_named_again_is_tried_at_once(retries):
    retries.failed(A, "no route", 0.0)
    retries.keep([Host("a", 1)])
    assert not retries.is_due(A, 1.0)
    retries.keep([])
    assert retries.is_due(A, 1.0)
    retries.keep([A])
    assert retries.failed(A, "no route", 1.0) == FIRST_WAIT_S


def test_a_failure_of_a_host_that_is_no_longer_named_is_not_told(retries):
    retries.keep([A])
    retries.failed(A, "no route", 0.0)
    retries.keep([Host("b", 1)])
    assert retries.failed(A, "no route", 10.0) is None
    assert retries.is_due(A, 10.0)


@pytest.mark.parametrize(("lived_s", "wait_s"), [(1.0, 20.0), (300.0, 10.0)])
def test_an_agent_that_has_lived_long_has_not_failed_before(retries, lived_s, wait_s):
    retries.failed(A, "no route", 0.0)
    retries.arrived(A, 10.0)
    assert retries.failed(A, "cut", 10.0 + lived_s) == wait_s
