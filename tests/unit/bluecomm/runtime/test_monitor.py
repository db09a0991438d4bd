"""When the monitor warns, asks, extends a deadline, and fails an operation."""

import logging
from types import SimpleNamespace

import pytest

from bfrun.frames.driver_to_rank import (
    QueryPending,
    RankFinished,
    RankLost,
    StallTable,
    StopNotice,
)
from bfrun.frames.parts import RankSnapshot
from bluecomm.config import Config
from bluecomm.runtime import monitor as module
from bluecomm.runtime.call import FAREWELL
from bluecomm.runtime.failure import MISMATCH
from bluecomm.runtime.monitor import Monitor
from bluecomm.runtime.notice import Notice
from tests.support.frames import make_operation
from tests.support.stand_in import replace_in


class FakeEngine:
    def __init__(self):
        self.operations = []
        self.calls = []

    def pending(self):
        return list(self.operations)

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, *args))


class FakeAgentConnection:
    def __init__(self):
        self.sent = []

    def send(self, frame):
        self.sent.append(frame)

    def listen(self, listener):
        self.listener = listener


class Bench:
    """A monitor whose thread does not run, and fakes of what it acts on."""

    def __init__(self, monkeypatch, *, with_agent=True):
        monkeypatch.setattr(Monitor, "_run", lambda self: None)
        self.now = 1000.0
        replace_in(monkeypatch, module, "time", monotonic=lambda: self.now)
        self.engine = FakeEngine()
        self.agent = FakeAgentConnection() if with_agent else None
        self.told = []
        self.hard = set()
        self.waited_for = set()
        self.standing = set()
        peer = SimpleNamespace(host="h", pid=70)
        self.world = SimpleNamespace(
            rank=0,
            peers=[peer, SimpleNamespace(host="b", pid=71)],
            engine=self.engine,
            config=Config(),
            notice=Notice(),
            member_feed=SimpleNamespace(report=lambda *told: self.told.append(told)),
            rendezvous=SimpleNamespace(
                agent=self.agent,
                news=self.agent,
                assignment=SimpleNamespace(stays=(0, 0)),
            ),
            is_spare=False,
            is_standing=self.standing.__contains__,
            has_hard_deadline=self.hard.__contains__,
            is_waited_for=self.waited_for.__contains__,
            blocks_program=self.waited_for.__contains__,
        )
        self.monitor = Monitor(self.world)

    def outstanding(self, number, age_s, name="x", *, wish=""):
        self.engine.operations.append(
            {
                "id": number,
                "kind": "allreduce",
                "name": name,
                "group": 1,
                "age_s": age_s,
                "waiting_for": [1],
                "wish": wish,
                "received_bytes": 0,
                "expected_bytes": 8,
            }
        )

    def look(self, seconds=0.0):
        """Advance the clock and run the monitor; return the names it asks about."""
        self.now += seconds
        for operation in self.engine.operations:
            operation["age_s"] += seconds
        before = len(self.agent.sent) if self.agent else 0
        self.monitor._look_at(self.engine.pending())
        return [frame.op for frame in self.agent.sent[before:]] if self.agent else []

    def report(self, *, idle_s=99.0, ops=()):
        """Give the monitor a report in which rank 1 has been idle for ``idle_s``."""
        entry = RankSnapshot(
            host="h", pid=7, state="running", cpu_s=0.0, idle_s=0.0, ops=[]
        )
        mine = [
            make_operation(
                name=one["name"],
                age_s=one["age_s"],
                blocking=one["id"] in self.waited_for,
            )
            for one in self.engine.operations
        ]
        ranks = {
            "0": entry.replace(ops=mine),
            "1": entry.replace(idle_s=idle_s, ops=list(ops)),
        }
        self.agent.listener(StallTable(op="x", ranks=ranks))


@pytest.fixture
def bench(monkeypatch):
    return Bench(monkeypatch)


@pytest.fixture
def log(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("bluecomm"), "propagate", True)
    return caplog


def test_it_warns_after_10_60_and_300_s(bench, log):
    bench.outstanding(1, 9.5)
    assert bench.look() == []
    asked = []
    for second in range(400):
        if bench.look(1.0):
            asked.append(second + 10)
            bench.report()
    assert asked == [10, 60, 300]
    assert len(log.records) == 3
    assert "has waited 60 s for rank 1" in log.text


def test_it_does_not_warn_while_a_finished_rank_serves_its_windows(bench, log):
    bench.outstanding(1, 9.5, FAREWELL)
    assert not any(bench.look(1.0) for _ in range(400))
    assert not log.records


def test_it_does_not_warn_of_a_message_that_may_come_at_any_time(bench, log):
    bench.outstanding(1, 9.5)
    bench.standing.add(1)
    assert not any(bench.look(1.0) for _ in range(400))
    assert not log.records
    # Its deadline is extended like others.
    assert bench.look(200.0) == ["x"]


def test_the_last_warning_shows_the_stack(bench, monkeypatch):
    dumps = []
    replace_in(
        monkeypatch,
        module,
        "faulthandler",
        dump_traceback=lambda **options: dumps.append(options),
    )
    bench.outstanding(1, 10.0)
    for seconds in (0, 50, 239):
        bench.look(seconds)
    assert dumps == []
    bench.look(1)
    assert len(dumps) == 1


def test_one_warning_covers_all_stalled_operations(bench, log):
    for handle in range(1, 6):
        bench.outstanding(handle, 10.0 + handle, name=f"x{handle}")
    bench.waited_for.add(2)
    assert bench.look() == ["x2"]
    bench.report()
    assert len(log.records) == 1
    assert "so have 4 more operations" in log.text


def test_without_an_agent_it_warns_of_its_own_operations(monkeypatch, log):
    bench = Bench(monkeypatch, with_agent=False)
    bench.outstanding(1, 10.0)
    bench.look()
    assert "allreduce 'x' on rank 0 has waited 10 s for rank 1" in log.text


def test_an_operation_that_ended_meanwhile_is_not_reported(bench, log):
    bench.outstanding(1, 10.0)
    bench.look()
    bench.engine.operations.clear()
    bench.report()
    assert log.records == []


@pytest.mark.parametrize(("idle_s", "extended"), [(20.0, True), (40.0, False)])
def test_a_busy_rank_extends_the_deadline(bench, idle_s, extended):
    bench.outstanding(1, 584.0)
    for _ in range(3):
        bench.look()  # the warnings
    bench.report(idle_s=idle_s)
    assert bench.engine.calls == []
    assert bench.look(6.0) == ["x"]
    assert bench.look(1.0) == []
    bench.report(idle_s=idle_s)
    expected = [("extend_deadline", 1, 60.0)] if extended else []
    assert bench.engine.calls == expected
    assert bench.look(5.0) == ["x"]


def test_a_deadline_that_the_caller_gave_stands(bench):
    bench.outstanding(1, 590.0)
    bench.hard.add(1)
    for _ in range(3):
        bench.look()
    assert bench.look(10.0) == []
    bench.report(idle_s=0.0)
    assert bench.engine.calls == []


def test_a_call_about_a_window_is_extended_too(bench):
    bench.outstanding(1, 590.0, wish="to release the mutex of rank 1")
    for _ in range(4):
        bench.look()
    bench.report(idle_s=0.0)
    assert bench.engine.calls == [("extend_deadline", 1, 60.0)]


def test_a_request_may_end_before_its_report_comes(bench):
    def released(*_):
        raise ValueError("request 1 is unknown")

    bench.outstanding(1, 590.0)
    bench.engine.extend_deadline = released
    bench.report(idle_s=0.0)


def test_a_call_about_a_window_is_in_no_cycle(bench):
    bench.outstanding(1, 11.0, wish="to answer")
    bench.waited_for.add(1)
    bench.look()
    bench.report(ops=[make_operation(name="y", age_s=11.0, waiting_for=[0])])
    assert bench.engine.calls == []
    bench.agent.listener(QueryPending(id=4))
    assert not bench.agent.sent[-1].ops[0].blocking


def test_a_cycle_ends_the_call_that_blocks(bench):
    bench.outstanding(1, 11.0)
    bench.outstanding(2, 11.0, name="background")
    bench.waited_for.add(1)
    bench.look()
    other = make_operation(name="y", age_s=11.0, waiting_for=[0])
    bench.report(ops=[other])
    (call,) = bench.engine.calls
    assert call[:3] == ("fail", 1, MISMATCH)
    assert "crossed order" in call[3]


def lost(rank, text):
    return RankLost(rank=rank, host="h", cause="SIGKILL", text=text)


def test_the_loss_of_a_rank_with_a_new_number_concerns_a_later_world(bench):
    bench.agent.listener(lost(2, "rank 2 was killed"))
    assert bench.engine.calls == bench.told == []


def test_the_engine_hears_of_a_lost_rank_at_once(bench, log):
    bench.agent.listener(lost(1, "rank 1 was killed"))
    assert bench.engine.calls == [("peer_lost", 1, "rank 1 was killed")]
    assert bench.told == [(1, "lost", "rank 1 was killed")]
    bench.agent.listener(lost(0, "rank 0 was stopped"))
    text = "the launcher ends this rank: rank 0 was stopped"
    assert bench.engine.calls[1:] == [("leave_members", text)]
    assert "considers this rank lost: rank 0 was stopped" in log.text


def test_the_last_bytes_of_a_finished_rank_may_arrive_first(bench):
    bench.agent.listener(RankFinished(rank=1, host="b"))
    bench.monitor._pass_on_finished()
    assert bench.engine.calls == []
    assert [kind for _, kind, _ in bench.told] == ["finished"]
    bench.now += 0.6
    bench.monitor._pass_on_finished()
    text = "rank 1 on b (pid 71) had finished (exit 0)"
    assert bench.engine.calls == [("peer_lost", 1, text)]


def test_it_lists_outstanding_operations(bench):
    bench.outstanding(1, 3.0)
    bench.waited_for.add(1)
    bench.agent.listener(QueryPending(id=4))
    (answer,) = bench.agent.sent
    assert answer.id == 4
    assert answer.ops[0].name == "x"
    assert answer.ops[0].blocking is True


def test_it_does_not_list_what_stands_for_a_time_of_its_own(bench):
    for number in (1, 2, 3):
        bench.outstanding(number, 3.0, f"x{number}")
    bench.standing.update([1, 2])
    bench.hard.update([2, 3])
    bench.agent.listener(QueryPending(id=4))
    (answer,) = bench.agent.sent
    assert [one.name for one in answer.ops] == ["x1", "x3"]


def test_a_notice_is_passed_on(monkeypatch):
    bench = Bench(monkeypatch)
    heard = []
    bench.world.notice.listen(lambda: heard.append(1))
    bench.agent.listener(StopNotice())
    assert heard == [1]
