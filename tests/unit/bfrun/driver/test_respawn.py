"""When lost ranks are started again."""

from bfrun.driver.respawn import Respawns


def lose(respawns, lost_at):
    """Lose rank 3 and start it again; return how long it waited."""
    assert respawns.lost(3, lost_at) == ""
    respawns.has_ended(3)
    wait_s = next(wait_s for wait_s in range(100) if respawns.due(lost_at + wait_s))
    respawns.started(3, lost_at + wait_s)
    assert respawns.due(lost_at + wait_s) == []
    return wait_s


def test_a_rank_waits_longer_each_time_if_its_processes_live_for_less_than_a_minute():
    respawns, now, waits = Respawns(), 0.0, []
    for _ in range(9):
        waits.append(lose(respawns, now))
        now += waits[-1] + 59
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_after_a_longer_life_a_rank_waits_as_the_first_time():
    respawns = Respawns()
    assert [lose(respawns, at) for at in (0, 50, 113, 200)] == [1, 2, 1, 1]


def test_a_rank_waits_for_the_end_of_its_last_process():
    respawns = Respawns()
    respawns.lost(1, 0)
    assert respawns.due(50) == []
    respawns.has_ended(1)
    assert respawns.due(50) == [1]


def test_the_end_of_a_process_may_be_known_before_its_loss():
    respawns = Respawns()
    respawns.has_ended(1)
    respawns.lost(1, 0)
    assert respawns.due(1) == [1]
    respawns.started(1, 1)
    respawns.lost(1, 100)
    assert respawns.due(200) == []


def test_after_three_losses_within_a_minute_a_rank_is_not_started_again():
    respawns = Respawns()
    for time in 0, 30:
        assert respawns.lost(2, time) == ""
        respawns.has_ended(2)
        respawns.started(2, time + 1)
    assert respawns.lost(1, 58) == ""
    respawns.has_ended(1)
    text = "rank 2 was lost 3 times within 60 s, so it is not started again"
    assert respawns.lost(2, 59) == text
    respawns.has_ended(2)
    assert respawns.due(1000) == [1]


def test_nobody_can_start_the_ranks_of_a_lost_host():
    respawns = Respawns()
    for rank in 0, 1, 2:
        respawns.has_ended(rank)
    respawns.lost(1, 0)
    respawns.close([1, 2])
    # This is known, and not said again.
    assert respawns.lost(2, 0) == ""
    respawns.lost(0, 0)
    assert respawns.due(1000) == [0]
