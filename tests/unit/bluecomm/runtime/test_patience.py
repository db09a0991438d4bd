"""Lengths of time that follow from the deadline of operations."""

import pytest

from bluecomm.runtime.patience import Patience


def test_the_default_of_ten_minutes():
    patience = Patience(600.0)
    assert not patience.is_near(584.0)
    assert patience.is_near(585.0)
    assert (patience.ask_every_s, patience.busy_within_s) == (5.0, 30.0)
    assert patience.extension_s == 60.0


@pytest.mark.parametrize("limit_s", [0.001, 1.0, 4.0, 50.0])
def test_short_deadlines_leave_time_to_ask(limit_s):
    patience = Patience(limit_s)
    assert patience.near_after_s + 2 * patience.ask_every_s < limit_s
    assert patience.extension_s > patience.ask_every_s
