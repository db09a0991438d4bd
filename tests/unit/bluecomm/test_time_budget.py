"""The deadline that the calls of one operation share."""

from __future__ import annotations

import types

import pytest

from bluecomm.ops import time_budget


def test_later_calls_get_what_is_left_and_at_least_a_tenth(monkeypatch):
    now = [100.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(time_budget, "time", clock)
    budget = time_budget.TimeBudget(20.0)
    assert budget.left_s() == 20.0
    now[0] += 15.0
    assert budget.left_s() == pytest.approx(5.0)
    now[0] += 15.0
    assert budget.left_s() == pytest.approx(2.0)
