"""Tests that bfrun refuses a job that a host cannot hold."""

from types import SimpleNamespace

import pytest

from bfrun.config import LaunchConfig
from bfrun.driver import capacity
from bfrun.driver.capacity import check_capacity, make_room_for_logs
from bfrun.errors import LaunchError
from bfrun.frames.agent_to_driver import HostLimit
from bfrun.hosts import parse_hosts
from bfrun.plan import make_plan
from tests.support.stand_in import replace_in


def check(*limits):
    plan = make_plan(LaunchConfig(("x",), hosts=parse_hosts("a:100,b:7")), {}, {})
    found = [
        HostLimit(name=name, what="things", limit=limit, used=10, per_rank=3)
        for name, limit in limits
    ]
    session = SimpleNamespace(ready=SimpleNamespace(limits=found))
    check_capacity(plan, [session, session])


def test_limits_that_are_just_enough():
    check(("many", 10**9), ("just", 310))


def test_every_limit_that_is_too_low_is_named_with_its_values():
    with pytest.raises(LaunchError) as caught:
        check(("first", 309), ("second", 30))
    assert str(caught.value).splitlines() == [
        f"host '{host}': starting {ranks} ranks takes {3 * ranks} more things, but "
        f"{name} is {limit}, of which 10 are in use; raise it, or start fewer ranks "
        "there"
        for host, ranks, name, limit in (
            ("a", 100, "first", 309),
            ("a", 100, "second", 30),
            ("b", 7, "second", 30),
        )
    ]


def test_room_for_logs(monkeypatch):
    now = [(256, 1000)]
    replace_in(
        monkeypatch,
        capacity,
        "resource",
        getrlimit=lambda which: now[0],
        setrlimit=lambda which, to: now.__setitem__(0, to),
    )
    make_room_for_logs(1)
    assert now[0] == (256, 1000)
    make_room_for_logs(200)
    assert now[0] == (528, 1000)
    with pytest.raises(LaunchError, match=r"500 ranks takes 1128 .* \(ulimit -Hn\) is"):
        make_room_for_logs(500)
