"""When a slot whose process was lost gets another one."""

from bfrun.driver.respawn import HostSlot, Respawns

ONE, OTHER = HostSlot(0, 3), HostSlot(1, 0)


def lose(respawns, lost_at):
    """Lose the process of a slot and start the next; return how long it waited."""
    assert not respawns.lost(ONE, lost_at)
    wait_s = next(s for s in range(100) if respawns.is_due(ONE, lost_at + s))
    respawns.started(ONE, lost_at + wait_s)
    return wait_s


def test_a_slot_waits_longer_each_time_if_its_processes_live_for_less_than_a_minute():
    respawns, now, waits = Respawns(), 0.0, []
    respawns.started(ONE, now)
    for _ in range(9):
        waits.append(lose(respawns, now))
        now += waits[-1] + 59
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_after_a_longer_life_a_slot_waits_as_the_first_time():
    respawns = Respawns()
    assert [lose(respawns, at) for at in (0, 50, 113, 200)] == [1, 2, 1, 1]


def test_the_first_wait_is_a_setting():
    respawns, now, waits = Respawns(20.0), 0.0, []
    for _ in range(4):
        waits.append(lose(respawns, now))
        now += waits[-1] + 59
    assert waits == [20, 40, 60, 60]


def test_after_three_losses_within_a_minute_a_slot_stays_empty():
    respawns = Respawns()
    for time in 0, 30:
        assert not respawns.lost(ONE, time)
    assert not respawns.lost(OTHER, 58)
    assert respawns.lost(ONE, 59)
    # This is known, and not said again.
    assert not respawns.lost(ONE, 60)
    assert not respawns.is_due(ONE, 1000)
    assert respawns.is_due(OTHER, 1000)
