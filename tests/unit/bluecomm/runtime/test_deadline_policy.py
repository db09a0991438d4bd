"""Durations that are derived from the deadline of operations."""

import pytest

from bluecomm.runtime.deadline_policy import DeadlinePolicy


def test_the_default_of_ten_minutes():
    policy = DeadlinePolicy(600.0)
    assert not policy.is_near(584.0)
    assert policy.is_near(585.0)
    assert (policy.ask_every_s, policy.busy_within_s) == (5.0, 30.0)
    assert policy.extension_s == 60.0


@pytest.mark.parametrize("limit_s", [0.001, 1.0, 4.0, 50.0])
def test_short_deadlines_leave_time_to_ask(limit_s):
    policy = DeadlinePolicy(limit_s)
    assert policy.near_after_s + 2 * policy.ask_every_s < limit_s
    assert policy.extension_s > policy.ask_every_s
