import pytest

from bfrun.driver.membership import Failure, Membership, describe_status, first_failure
from bfrun.frames.driver_to_rank import RankFinished, RankFrozen, RankLost
from bfrun.frames.rank_to_driver import Failing


@pytest.fixture
def members():
    membership = Membership.of({0: "a", 1: "a", 2: "b"})
    for rank in range(3):
        membership.command_started(rank, 100 + rank)
    return membership


def test_an_exit_after_goodbye_is_finished(members):
    members.goodbye(1)
    assert members.exited(1, 0) == [RankFinished(rank=1, host="a")]
    assert members.failures == []


def test_an_exit_without_goodbye_says_so(members):
    (frame,) = members.exited(2, 0)
    assert isinstance(frame, RankFinished)
    assert frame.cause == "exit 0"
    assert frame.text == "rank 2 on b had finished (exit 0)"


def test_a_new_hello_takes_the_goodbye_back(members):
    members.goodbye(1)
    members.hello(1, 555)
    assert members.exited(1, 0)[0].cause == "exit 0"
    assert members.members[1].pid == 555


@pytest.mark.parametrize(
    ("status", "cause", "text", "code"),
    [
        (-9, "SIGKILL", "was killed by SIGKILL", 137),
        (-11, "SIGSEGV", "was killed by SIGSEGV", 139),
        (3, "exit 3", "ended with exit code 3", 3),
        (143, "exit 143", "exit code 143 (which shells use for SIGTERM)", 143),
    ],
)
def test_a_failure_names_rank_host_and_pid(members, status, cause, text, code):
    (frame,) = members.exited(2, status, "oom!")
    assert isinstance(frame, RankLost)
    assert (frame.rank, frame.host) == (2, "b")
    assert frame.cause == cause
    assert frame.text.startswith("rank 2 on b (pid 102) ")
    assert frame.text.endswith(text)
    (failure,) = members.failures
    assert (failure.exit_code, failure.hint) == (code, "oom!")


def test_unknown_signals_have_numbers():
    assert describe_status(-123)[1] == "signal 123"


def test_each_rank_is_announced_once(members):
    assert members.vanished(0, 7)[0].cause == "ended without goodbye"
    assert members.exited(0, 1) == []
    assert len(members.failures) == 1
    assert members.members[0].ended


def failing(cause="KeyError", status=1, peers=()):
    return Failing(
        cause=cause, deed=f"raised {cause}", reason="x", status=status, peers=[*peers]
    )


def test_a_rank_may_tell_of_its_failure(members):
    (frame,) = members.failing(1, failing())
    assert frame == RankLost(
        rank=1,
        host="a",
        cause="KeyError",
        text="rank 1 on a (pid 101) raised KeyError: x",
    )
    assert not members.members[1].ended
    assert members.exited(1, 1) == []
    (failure,) = members.failures
    assert (failure.text, failure.exit_code) == (frame.text, 1)


def test_another_exit_than_the_rank_has_told_completes_its_failure(members):
    members.failing(1, failing())
    members.exited(1, -11)
    (failure,) = members.failures
    assert failure.exit_code == 139
    assert failure.text.endswith("raised KeyError: x, and was killed by SIGSEGV")


def test_the_end_of_the_job_does_not_change_a_failure(members):
    members.failing(1, failing())
    members.ending = True
    members.exited(1, -15)
    assert members.failures[0].exit_code == 1


def test_a_failure_of_a_lost_peer_names_the_peer(members):
    members.exited(2, -9)
    members.failing(1, failing("PeerLostError", peers=[2]))
    first, second = members.failures
    assert (
        second.text
        == f"rank 1 on a (pid 101) raised PeerLostError, because {first.text}"
    )
    assert first_failure([second, first], {}) is first


def test_ranks_that_left_early(members):
    members.exited(0, 0)
    members.goodbye(1)
    members.goodbye(2)
    members.exited(2, 1)
    assert members.left_early() == {
        0: "rank 0 on a (pid 100) exited with status 0",
        1: "rank 1 on a (pid 101) called shutdown()",
    }


def test_a_lost_thread_is_a_warning(members):
    (frame,) = members.damaged(2, "T", "KeyError: x")
    assert frame.text == (
        "rank 2 on b (pid 102) still runs, but its thread 'T' ended: KeyError: x"
    )
    assert members.failures == []


def test_deaths_while_the_job_ends_are_no_failures(members):
    members.ending = True
    assert members.exited(0, -15) == []
    assert members.failures == []


def test_a_lost_agent_takes_its_living_ranks_along(members):
    members.exited(0, 0)
    frames = members.agent_lost([0, 1], "connection cut")
    assert [frame.rank for frame in frames] == [1]
    assert frames[0].cause == "agent lost"
    assert "lost with its agent: connection cut" in frames[0].text
    assert not members.all_ended
    members.agent_lost([2], "connection cut")
    assert members.all_ended


def test_freezes_are_first_a_warning_then_a_failure(members):
    (warning,) = members.frozen(1, 10.0)
    assert isinstance(warning, RankFrozen)
    assert warning.seconds == 10.0
    assert "kill -CONT 101" in warning.text
    (lost,) = members.froze_too_long(1, 120.0)
    assert lost.cause == "frozen 120 s"
    assert not members.members[1].ended


def test_a_command_that_cannot_start(members):
    (frame,) = members.not_started(0, "no such file")
    assert frame.text == "rank 0 on a could not be started: no such file"
    assert members.failures[0].exit_code == 127


def failure(rank, cause, at_s=1.0):
    return Failure(rank, cause, f"rank {rank}", 1, at_s)


def test_without_failures_there_is_no_first_failure():
    assert first_failure([], {}) is None


def test_the_first_to_arrive_is_blamed():
    failures = [failure(1, "exit 1"), failure(0, "exit 1", 1.1)]
    assert first_failure(failures, {}).rank == 1


def test_a_rank_that_reports_a_lost_peer_is_not_the_first_failure():
    failures = [failure(1, "exit 1"), failure(0, "exit 1", 1.1)]
    tails = {1: ["bluecomm.PeerLostError: rank 0"]}
    assert first_failure(failures, tails).rank == 0


def test_a_kill_that_arrives_late_is_blamed():
    failures = [failure(1, "exit 1"), failure(0, "SIGKILL", 1.3)]
    assert first_failure(failures, {}).rank == 0


def test_a_much_later_failure_is_not_the_first():
    failures = [failure(1, "exit 1"), failure(0, "SIGKILL", 2.0)]
    assert first_failure(failures, {}).rank == 1


def said(reason, cause="ValueError"):
    return Failing(
        cause=cause, deed=f"raised {cause}", reason=reason, status=1, peers=[]
    )


def test_others_outlive_a_failure(members):
    members.exited(1, -9)
    assert members.outlive(1)
    assert members.failures == []
    assert [loss.rank for loss in members.losses] == [1]
    assert members.survivors == members.remaining == [0, 2]


def test_nobody_outlives_the_last_rank(members):
    for rank in (0, 2):
        members.exited(rank, -9)
        assert members.outlive(rank)
    members.exited(1, 3)
    assert not members.outlive(1)
    assert [failure.rank for failure in members.failures] == [0, 2, 1]
    assert members.losses == []


def test_a_rank_that_has_returned_is_left(members):
    members.exited(0, 0)
    for rank in (1, 2):
        members.exited(rank, -9)
        assert members.outlive(rank)


def test_the_same_error_of_two_ranks_is_not_outlived(members):
    members.exited(0, -9)
    assert members.outlive(0)
    members.failing(1, said("loss is NaN at step 7"))
    assert members.outlive(1)
    members.failing(2, said("loss is NaN at step 12"))
    assert not members.outlive(2)
    assert [failure.rank for failure in members.failures] == [1, 2]
    assert [loss.rank for loss in members.losses] == [0]


def test_different_errors_are_outlived(members):
    members.failing(1, said("no space on device"))
    assert members.outlive(1)
    members.failing(2, said("no such file"))
    assert members.outlive(2)


def test_the_exit_status_completes_a_loss(members):
    members.failing(1, said("why"))
    assert members.outlive(1)
    members.exited(1, -11)
    assert members.losses[0].text.endswith("and was killed by SIGSEGV")


def test_an_excluded_rank_is_lost_once(members):
    (lost,) = members.excluded(1, "stopped", 0.43)
    assert lost.cause == "stopped"
    assert lost.text == "rank 1 on a (pid 101) has been stopped for 0.4 s"
    assert members.excluded(1, "stopped", 0.5) == []
    assert members.exited(1, -9) == []
    (lost,) = members.excluded(2, "broken", 0.0)
    assert lost.cause == "cut off"
    assert lost.text == "rank 2 on b (pid 102) has lost its link to another rank"


def lose(members, rank, **said):
    """Lose a rank, whose process ends, and return whether the job goes on."""
    members.failing(rank, failing(**said))
    members.exited(rank, 1)
    return members.outlive(rank)


def test_a_rank_that_is_started_again_counts_once_it_has_joined(members):
    assert lose(members, 1)
    assert members.start_newcomer(1, "a") == 1
    members.hello(1, 201)
    assert members.remaining == [0, 2]
    assert members.joined(1) == "rank 1 on a (pid 201)"
    assert members.remaining == [0, 1, 2]
    assert [failure.stay for failure in members.losses] == [0]


def test_a_newcomer_may_be_lost_itself(members):
    assert lose(members, 1)
    members.start_newcomer(1, "a")
    (frame,) = members.exited(1, -9)
    assert (frame.rank, frame.stay) == (1, 1)
    assert members.outlive(1)
    assert [failure.stay for failure in members.losses] == [0, 1]
    assert members.start_newcomer(1, "a") == 2


def test_the_same_error_twice_on_one_rank_is_a_mistake_in_the_program(members):
    assert lose(members, 1)
    members.start_newcomer(1, "a")
    assert not lose(members, 1)
    assert [failure.rank for failure in members.failures] == [1, 1]


def test_a_newcomer_that_needs_a_lost_rank_makes_no_mistake(members):
    for _ in range(3):
        assert lose(members, 1, cause="PeerLostError", peers=[0])
        members.start_newcomer(1, "a")


def test_ranks_that_were_left_out_make_no_mistake(members):
    for rank in (1, 2):
        assert lose(members, rank, cause="PeerLostError")
    assert members.remaining == [0]


def test_losses_end_the_job_after_all(members):
    assert lose(members, 1)
    members.fail_all()
    assert [failure.rank for failure in members.failures] == [1]
    assert members.losses == []


def test_no_job_goes_on_with_newcomers_only(members):
    assert lose(members, 1)
    members.start_newcomer(1, "a")
    members.exited(0, 0)
    assert members.give_up() == []
    members.exited(2, -9)
    assert members.outlive(2)  # rank 0 has finished
    assert members.give_up() == [1]
    assert members.give_up() == []
    assert members.exited(1, -9) == []
    assert [one.rank for one in members.losses] == [1, 2]
    assert members.all_ended


def test_an_error_in_a_slot_on_trial_may_be_that_of_a_machine(members):
    for rank in (3, 4):
        assert members.start_newcomer(rank, "new", is_on_trial=True) == 1
        assert lose(members, rank, cause="ImportError")
    # Once it has joined, its errors count.
    members.start_newcomer(3, "new", is_on_trial=True)
    members.joined(3)
    assert lose(members, 3, cause="ImportError")
    assert not lose(members, 1, cause="ImportError")


def test_a_rank_that_has_left_does_not_count(members):
    members.hello(1, 101)
    assert members.leave(1) == "rank 1 on a (pid 101)"
    assert (members.remaining, members.left) == ([0, 2], [1])
    members.start_newcomer(1, "c")
    members.joined(1)
    assert (members.remaining, members.left) == ([0, 1, 2], [])
