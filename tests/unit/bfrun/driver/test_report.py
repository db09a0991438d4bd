from bfrun.driver.leftovers import Leftovers
from bfrun.driver.membership import Failure
from bfrun.driver.report import make_verdict

CLEAN = Leftovers(2, {"a": 0, "b": 0})


def failure(rank, cause="exit 1", hint=None):
    return Failure(rank, cause, f"rank {rank} died", 3, 1.25, hint)


def verdict(failures=(), leftovers=CLEAN, **others):
    return make_verdict(failures, leftovers, **{"tails": {}, "log_paths": {}, **others})


def test_success_has_nothing_to_say():
    assert verdict().report == ""
    assert verdict().exit_code == 0


def test_success_states_what_is_left_when_asked():
    assert verdict(verbose=True).report == "bfrun: 0 processes left on 2 hosts"


def test_leftovers_are_always_reported():
    text = verdict(leftovers=Leftovers(2, {"a": 0, "b": 3})).report
    assert text == "bfrun: 3 processes left on 2 hosts (b: 3)"


def test_a_failure_alone_is_one_line():
    result = verdict([failure(2)])
    assert result.exit_code == 3
    assert result.report == (
        "bfrun: job failed: rank 2 died; 0 processes left on 2 hosts"
    )


def test_a_failure_with_cause_tail_log_and_later_failures():
    failures = [failure(2, hint="memory"), failure(0), failure(1), failure(3, "exit 5")]
    tails = {2: ["one", "two"], 0: ["not shown"]}
    text = verdict(failures, tails=tails, log_paths={2: "logs/rank2.stderr"}).report
    assert text.splitlines() == [
        "bfrun: first failure, 1.2 s after the start: rank 2 died",
        "  cause: memory",
        "  last lines of stderr of rank 2:",
        "    one",
        "    two",
        "  full stderr: logs/rank2.stderr",
        "  later failures: ranks 0-1: exit 1; rank 3: exit 5",
        "bfrun: job failed: rank 2 died; 0 processes left on 2 hosts",
    ]


def test_advice_about_a_failure():
    text = verdict(
        [failure(2)], tails={2: ["x"]}, hint_of=lambda rank, tail: f"{rank}: {tail[0]}"
    ).report
    assert text.splitlines()[3] == "  hint: 2: x"


def test_a_tail_that_has_been_shown_is_not_shown_again():
    lines = verdict([failure(2)], tails={2: ["one"]}, shown=[1, 2]).report.splitlines()
    assert lines[1:-1] == ["  its stderr is above, in the lines with [2]"]
    lines = verdict([failure(2)], tails={2: ["one"]}, shown=[1]).report.splitlines()
    assert lines[1:-1] == ["  last lines of stderr of rank 2:", "    one"]


def test_an_interrupted_job_returns_the_signals_code():
    result = verdict(interrupted_by="SIGINT", interrupted_code=130)
    assert result.exit_code == 130
    assert result.report == "bfrun: ended by SIGINT; 0 processes left on 2 hosts"


def test_a_rank_that_left_early_is_blamed():
    first = Failure(0, "PeerLostError", "rank 0 lost rank 1", 1, 1.0, peers=(1,))
    verdict = make_verdict(
        [first],
        Leftovers(1, {"a": 0}),
        tails={},
        log_paths={},
        left_early={1: "rank 1 on a (pid 7) exited with status 0"},
    )
    assert verdict.report.splitlines() == [
        "bfrun: first failure, 1.0 s after the start: rank 0 lost rank 1",
        "bfrun: job failed: rank 1 on a (pid 7) exited with status 0 while rank 0 "
        "still needed it; 0 processes left on 1 host",
    ]


def test_losses_are_reported_although_the_job_succeeded():
    losses = [failure(2, "SIGKILL"), failure(0)]
    result = verdict(losses=losses, world_size=4)
    assert (result.exit_code, result.lost) == (0, (2, 0))
    assert result.report == (
        "bfrun: finished with 2 of 4 ranks; lost rank 2 (SIGKILL) after 1.2 s, "
        "rank 0 (exit 1) after 1.2 s; 0 processes left on 2 hosts"
    )


def test_many_losses_are_counted():
    losses = [failure(rank % 4, "SIGKILL") for rank in range(14)]
    losses += [failure(7, "stopped")] * 3
    result = verdict(losses=losses, joined=range(8), world_size=8)
    assert result.report == (
        "bfrun: finished with 8 of 8 ranks; lost ranks 0-3, 7 (17 losses: 14 x "
        "SIGKILL, 3 x stopped); 0 processes left on 2 hosts"
    )


def test_a_failure_after_losses_names_them():
    result = verdict([failure(1)], losses=[failure(2, "SIGKILL")], world_size=3)
    assert result.exit_code == 3
    assert "  before: lost rank 2 (SIGKILL) after 1.2 s" in result.report.splitlines()
