"""When lost ranks are started again."""

from bfrun.driver.respawn import Respawns


def test_a_rank_waits_longer_each_time():
    respawns = Respawns()
    for lost_at, wait_s in (0, 1), (100, 2), (200, 4):
        assert respawns.lost(3, lost_at) == ""
        respawns.has_ended(3)
        assert respawns.due(lost_at + wait_s - 0.1) == []
        assert respawns.due(lost_at + wait_s) == [3]
        respawns.started(3)
        assert respawns.due(lost_at + wait_s) == []


def test_the_longest_wait_is_a_minute():
    respawns = Respawns()
    for time in range(0, 20 * 100, 100):
        assert respawns.lost(0, time) == ""
    respawns.has_ended(0)
    assert respawns.due(1900 + 60) == [0]


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
    respawns.started(1)
    respawns.lost(1, 100)
    assert respawns.due(200) == []


def test_after_three_losses_within_a_minute_a_rank_is_not_started_again():
    respawns = Respawns()
    for time in 0, 30:
        assert respawns.lost(2, time) == ""
        respawns.has_ended(2)
        respawns.started(2)
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
