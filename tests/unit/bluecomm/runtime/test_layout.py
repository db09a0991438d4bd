"""The machines of a group's members."""

from bluecomm.runtime.layout import layout_of


def test_machines_are_numbered_by_their_first_member():
    layout = layout_of(["b", "a", "b", "c", "a"])
    assert layout.machine_of == (0, 1, 0, 2, 1)
    assert (layout.size, layout.machine_size) == (5, 3)
    assert layout.members(0) == [0, 2]
    assert [layout.local_rank(i) for i in range(5)] == [0, 0, 1, 0, 1]
    assert [layout.local_size(i) for i in range(5)] == [2, 2, 2, 1, 2]
    assert not layout.is_homogeneous


def test_simulated_machines_cut_a_real_one():
    layout = layout_of(["a"] * 5 + ["b"] * 2, ranks_per_machine=2)
    assert layout.machine_of == (0, 0, 1, 1, 2, 3, 3)


def test_a_restricted_layout_numbers_machines_anew():
    layout = layout_of(["a", "b", "c", "b"]).restrict([3, 2, 1])
    assert layout.machine_of == (0, 1, 0)
    assert layout_of([]).machine_size == 0
