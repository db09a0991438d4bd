from bfrun.driver.shutdown import (
    EXIT_S,
    GRACE_S,
    TERM_S,
    UNREAD_S,
    USER_TERM_S,
    Action,
    Shutdown,
)


def test_end_of_all_ranks_ends_the_job():
    shutdown = Shutdown()
    assert shutdown.step(0, False) is Action.NOTHING
    assert shutdown.step(1, True) is Action.END
    assert shutdown.ended
    assert shutdown.step(2, True) is Action.NOTHING


def test_a_failure_leaves_grace_then_terminates_then_ends():
    shutdown = Shutdown()
    shutdown.fail(10.0)
    shutdown.fail(11.0)
    assert shutdown.step(10.0 + GRACE_S - 0.1, False) is Action.NOTHING
    assert shutdown.step(10.0 + GRACE_S, False) is Action.TERMINATE
    assert shutdown.step(10.0 + GRACE_S + TERM_S - 0.1, False) is Action.NOTHING
    assert shutdown.step(10.0 + GRACE_S + TERM_S, False) is Action.END
    assert GRACE_S + TERM_S < 6


def test_a_rank_that_has_told_of_its_failure_may_exit_slowly():
    quick, slow = Shutdown(), Shutdown()
    for shutdown in (quick, slow):
        shutdown.expect(1, 0.0)
        shutdown.expect(2, 0.0)
        shutdown.exited(2, 1.0)
    assert slow.step(EXIT_S - 0.1, False) is Action.NOTHING
    quick.exited(1, 5.0)
    assert quick.step(5.0 + GRACE_S, False) is Action.TERMINATE
    assert slow.step(EXIT_S, False) is Action.TERMINATE


def test_the_user_ends_without_grace_and_the_second_time_at_once():
    shutdown = Shutdown()
    shutdown.interrupt(5.0)
    assert shutdown.step(5.0, False) is Action.TERMINATE
    assert shutdown.step(5.0 + USER_TERM_S - 0.1, False) is Action.NOTHING
    shutdown.interrupt(6.0)
    assert shutdown.step(6.0, False) is Action.END


def test_the_user_cuts_the_grace_short():
    shutdown = Shutdown()
    shutdown.fail(0.0)
    shutdown.interrupt(0.5)
    assert shutdown.step(0.5, False) is Action.TERMINATE


def test_unread_output_delays_the_end_until_the_user_interrupts():
    shutdown = Shutdown()
    assert not shutdown.leaves_output(1e6, taken_at=0.0)
    shutdown.interrupt(1e6)
    assert not shutdown.leaves_output(1e6 + UNREAD_S, taken_at=0.0)
    assert not shutdown.leaves_output(1e6 + 9, taken_at=1e6 + 9 - UNREAD_S)
    assert shutdown.leaves_output(1e6 + 9, taken_at=1e6)


def test_a_second_interrupt_drops_unread_output():
    twice, late = Shutdown(), Shutdown()
    for now in (5.0, 6.0):
        twice.interrupt(now)
    assert late.step(1.0, True) is Action.END
    late.interrupt(6.0)
    for shutdown in (twice, late):
        assert shutdown.leaves_output(6.0, taken_at=6.0)
