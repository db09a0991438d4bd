"""Sums and differences of the counters of devices."""

from bluecomm.device.work_counts import WorkCount, total_of, work_since


def test_devices_are_added_by_kind():
    first = {"A": WorkCount(1, 10, 0.5), "B": WorkCount(2, 0, 1.0)}
    second = {"A": WorkCount(3, 5, 0.25)}
    total = {"A": WorkCount(4, 15, 0.75), "B": WorkCount(2, 0, 1.0)}
    assert total_of([first, second]) == total
    assert total_of([]) == {}


def test_only_changes_are_counted():
    before = {"A": WorkCount(1, 10, 0.5), "B": WorkCount(2, 0, 1.0)}
    now = {**before, "A": WorkCount(3, 30, 0.75), "C": WorkCount(1, 1, 1.0)}
    assert work_since(now, before) == {
        "A": WorkCount(2, 20, 0.25),
        "C": WorkCount(1, 1, 1.0),
    }
