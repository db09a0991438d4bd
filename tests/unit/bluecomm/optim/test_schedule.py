import pytest

from bluecomm.optim.schedule import Schedule


def rounds(schedule, events):
    """Return which steps have a round; F is a forward pass, S a step."""
    found = []
    for event in events:
        if event == "F":
            schedule.on_forward()
        else:
            found.append(schedule.is_due)
            schedule.on_step()
    return found


@pytest.mark.parametrize(
    ("every", "events", "expected"),
    [
        (1, "FSFSFS", [1, 1, 1]),
        (1, "SSS", [1, 1, 1]),
        (1, "FFSFFFFS", [1, 1]),
        (3, "FFFSFFFS", [1, 1]),
        (3, "FSFSFSFSFSFS", [0, 0, 1, 0, 0, 1]),
        (3, "SSSSSS", [0, 0, 1, 0, 0, 1]),
        (2, "FSFFSFSFS", [0, 1, 0, 1]),
    ],
)
def test_which_steps_have_a_round(every, events, expected):
    schedule = Schedule(every)
    assert rounds(schedule, events) == [bool(due) for due in expected]
    assert schedule.round == sum(expected)


def test_state_is_restored():
    one = Schedule(3)
    rounds(one, "FSFSFSFS")
    other = Schedule(3)
    other.load_state_dict(one.state_dict())
    assert rounds(one, "FSFSFS") == rounds(other, "FSFSFS") == [False, True, False]
    assert one.round == other.round == 2


def test_rounds_outside_of_steps_count():
    schedule = Schedule(2)
    schedule.on_forward()
    schedule.on_round()
    assert schedule.round == 1
    assert not schedule.is_due
