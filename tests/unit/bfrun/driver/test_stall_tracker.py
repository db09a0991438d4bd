from bfrun.driver.stall_tracker import StallTracker
from bfrun.frames.parts import ProcessState, RankSnapshot
from tests.support.frames import make_operation

HOSTS = {0: "a", 1: "b"}
PROCESS = ProcessState(pid=7, state="running", cpu_s=1.5, idle_s=0.5)


def test_one_query_serves_all_who_ask():
    tracker = StallTracker(HOSTS)
    assert tracker.ask(0, "x", 0.0) == 1
    assert tracker.ask(1, "y", 0.1) is None
    tracker.pending(0, 1, [make_operation(name="x")])
    tracker.pending(1, 1, [make_operation(name="y")])
    assert tracker.reports({0, 1}, 0.2) == []
    tracker.inspected(1, {"0": PROCESS, "1": PROCESS})
    (first, report), (second, _) = tracker.reports({0, 1}, 0.3)
    assert (first, second) == (0, 1)
    assert report.op == "x"
    assert report.ranks["1"] == RankSnapshot(
        host="b", ops=[make_operation(name="y")], **PROCESS.to_json()
    )
    assert tracker.ask(0, "x", 9.0) == 2


def test_a_rank_that_does_not_answer_has_the_state_no_answer():
    tracker = StallTracker(HOSTS)
    tracker.ask(0, "x", 0.0)
    tracker.pending(0, 1, [])
    tracker.inspected(1, {"0": PROCESS, "1": PROCESS})
    assert tracker.reports({0, 1}, 1.9) == []
    ((_, report),) = tracker.reports({0, 1}, 2.0)
    assert report.ranks["0"].state == "running"
    assert report.ranks["1"].state == "no answer"
    assert report.ranks["1"].pid == 7


def test_the_dead_and_the_stopped_are_told_apart():
    tracker = StallTracker({0: "a", 1: "b", 2: "c"})
    tracker.ask(0, "x", 0.0)
    tracker.inspected(1, {"1": PROCESS.replace(state="stopped")})
    tracker.inspected(1, {"2": PROCESS.replace(state="exited")})
    ((_, report),) = tracker.reports({0, 1}, 2.0)
    states = [report.ranks[str(rank)].state for rank in range(3)]
    assert states == ["no answer", "stopped", "exited"]


def test_answers_to_older_queries_are_dropped():
    tracker = StallTracker(HOSTS)
    tracker.pending(0, 1, [make_operation(name="early")])
    tracker.ask(0, "x", 0.0)
    tracker.pending(0, 99, [make_operation(name="late")])
    tracker.inspected(99, {"0": PROCESS})
    ((_, report),) = tracker.reports({0, 1}, 3.0)
    assert report.ranks["0"].ops == []
