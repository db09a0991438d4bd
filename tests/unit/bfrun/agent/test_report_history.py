"""The reports that an agent keeps for the next driver."""

from bfrun.agent.report_history import ReportHistory
from bfrun.frames.agent_to_driver import (
    AGENT_TO_DRIVER,
    FromRank,
    Inspection,
    RankExited,
    RankStarted,
    RankStopped,
)
from bfrun.frames.driver_to_agent import Beat
from bfrun.frames.frame import decode
from bfrun.frames.rank_to_agent import Hello
from bfrun.frames.rank_to_driver import Goodbye, Publish, Stall


class Clock:
    now = 10.0

    def __call__(self):
        return self.now


def from_rank(frame, rank=0):
    return FromRank(rank=rank, frame=frame.to_message())


def kept(history):
    return [decode(past.frame, "it", AGENT_TO_DRIVER) for past in history.replay()]


def test_reports_keep_their_order_and_time():
    clock = Clock()
    history = ReportHistory(clock)
    reports = [
        RankStarted(rank=0, pid=7),
        Hello(rank=0, pid=8),
        from_rank(Goodbye()),
        Hello(rank=0, pid=9),
        RankExited(rank=0, pid=7, status=0),
    ]
    for report in reports:
        clock.now += 1
        history.note(report)
    assert kept(history) == reports
    assert [past.at_s for past in history.replay()] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert history.age_s == 5.0


def test_questions_and_their_answers_are_not_kept():
    history = ReportHistory(Clock())
    history.note(Beat())
    history.note(Inspection(id=1, ranks={}))
    history.note(from_rank(Stall(op="x")))
    assert history.replay() == []


def test_records_are_kept_until_their_round_has_ended():
    history = ReportHistory(Clock())
    for number in (0, 1):
        history.note(from_rank(Publish(round=number, record="r")))
    history.answered(0)
    assert kept(history) == [from_rank(Publish(round=1, record="r"))]


def test_a_stop_that_is_over_is_dropped():
    history = ReportHistory(Clock())
    for rank in (0, 1):
        history.note(RankStopped(event="frozen", rank=rank, pid=7, seconds=10.0))
    history.note(RankStopped(event="thawed", rank=0, pid=7, seconds=0.0))
    assert [frame.rank for frame in kept(history)] == [1]
