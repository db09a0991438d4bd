"""Which gradients one operation copies into flat memory."""

import pytest
import torch

from bluecomm.optim.buckets.slots import Slot
from bluecomm.optim.fused.joined_gradients import divide


def slots_of(*shapes):
    slots = []
    for shape in shapes:
        offset = slots[-1].end if slots else 0
        slots.append(Slot.of("weight", torch.empty(shape), offset))
    return slots


def test_small_neighbors_are_joined():
    assert divide(slots_of((16, 16), (32, 16), (16,), (3,), ())) == [
        slice(0, 2),
        slice(2, 4),
    ]


@pytest.mark.parametrize("shape", [(1024, 1024), (4096,)])
def test_large_ones_are_not(shape):
    """They would be moved twice, through memory as large as they are together."""
    assert divide(slots_of(shape, shape, shape)) == []


def test_a_large_one_divides_its_neighbors():
    assert divide(slots_of((4,), (4,), (4096,), (4,), (4,))) == [
        slice(0, 2),
        slice(3, 5),
    ]


def test_no_more_than_a_megabyte_is_joined():
    of_8_kib = slots_of(*[(2048,)] * 300)
    assert divide(of_8_kib) == [slice(0, 128), slice(128, 256), slice(256, 300)]
