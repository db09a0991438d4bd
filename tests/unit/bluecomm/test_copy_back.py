"""Copies of a result to a device in parts: which bytes, where, and on which stream."""

import math

import pytest
import torch

from bluecomm.device.copy_back import CopyBack
from bluecomm.device.copy_counts import copy_counts

VALUES = torch.arange(10, dtype=torch.int32)
NBYTES = 40
PART = 16  # bytes


class Filler:
    """Copies within the host, and notes what it does."""

    def __init__(self):
        self.stream = 1
        self.calls = []
        self.failures = 0

    def current_stream(self):
        return self.stream

    def follow(self, point):
        if point is not None:
            self.calls.append(point)

    def follow_streams(self, streams):
        self.calls.append(("follow", *streams))

    def empty(self, shape, dtype):
        self.calls.append("empty")
        return torch.full(tuple(shape), -1, dtype=dtype)

    def fill(self, tensor, values):
        if self.failures:
            self.failures -= 1
            raise RuntimeError("CUDA failed")
        self.calls.append(values.view(-1).tolist())
        tensor.view(-1).copy_(values.view(-1))


@pytest.fixture
def filler():
    return Filler()


def test_whole_parts_are_copied_and_the_rest_at_the_end(filler):
    target = torch.zeros(10, dtype=torch.int32)
    back = CopyBack(filler, VALUES, target, PART)
    before = copy_counts()
    assert back.in_parts
    assert back.wanted == PART
    back.take(PART + 8)
    assert (back.copied, back.wanted) == (PART, 2 * PART)
    assert target.tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 0, 0]
    back.take(2 * PART)
    assert back.wanted == NBYTES
    assert back.finish() is target
    assert filler.calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert target._version > 0
    assert copy_counts().since(before).overlapped_nbytes == 2 * PART


def test_a_result_that_is_complete_early_is_not_copied_again(filler):
    back = CopyBack(filler, VALUES, None, PART)
    back.take(NBYTES)
    assert back.wanted > NBYTES
    assert torch.equal(back.finish(), VALUES)
    assert filler.calls == ["empty", VALUES.tolist()]


def test_the_first_part_follows_earlier_uses_of_the_target(filler):
    target = torch.zeros(10, dtype=torch.int32)
    back = CopyBack(filler, VALUES, target, PART, after="a point")
    assert filler.calls == []
    back.take(PART)
    back.finish()
    assert filler.calls == ["a point", [0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]


def test_a_short_result_has_no_parts(filler):
    assert not CopyBack(filler, VALUES, None, NBYTES).in_parts
    assert torch.equal(CopyBack(filler, VALUES, None).finish(), VALUES)
    assert CopyBack(filler, VALUES[:0], None, 0).finish().numel() == 0


def test_tensors_in_other_layouts_are_written_at_the_end(filler):
    target = torch.zeros(5, 2, dtype=torch.int32).t()
    back = CopyBack(filler, VALUES.view(2, 5), target, PART)
    back.take(PART)
    assert int(target.abs().sum()) == 0
    assert back.finish() is target
    assert torch.equal(target, VALUES.view(2, 5))


@pytest.mark.parametrize("has_target", [False, True])
def test_another_stream_follows_the_first_one_and_copies_everything(filler, has_target):
    target = torch.zeros(10, dtype=torch.int32) if has_target else None
    back = CopyBack(filler, VALUES, target, PART)
    back.take(PART)
    filler.stream = 2
    back.take(2 * PART)
    assert torch.equal(back.finish(), VALUES)
    expected = [[0, 1, 2, 3], ("follow", 1), VALUES.tolist()]
    assert [one for one in filler.calls if one != "empty"] == expected
    assert filler.calls.count("empty") == (0 if has_target else 2)


def test_values_that_have_changed_are_copied_again(filler):
    values = VALUES.clone()
    back = CopyBack(filler, values, None, PART)
    back.take(PART)
    values.neg_()
    back.restart()
    assert torch.equal(back.finish(), -VALUES)


def test_changed_values_that_go_to_another_stream_follow_the_first_one(filler):
    back = CopyBack(filler, VALUES, None, PART)
    back.take(PART)
    back.restart()
    filler.stream = 2
    assert torch.equal(back.finish(), VALUES)
    assert filler.calls == [
        *("empty", [0, 1, 2, 3], ("follow", 1)),
        *("empty", VALUES.tolist()),
    ]


def test_a_part_that_fails_is_left_to_the_end_which_raises_the_error(filler):
    back = CopyBack(filler, VALUES, None, PART)
    filler.failures = 1
    back.take(PART)
    assert back.wanted > NBYTES
    back.take(2 * PART)
    assert filler.calls == ["empty"]
    assert torch.equal(back.finish(), VALUES)
    filler.failures = math.inf
    with pytest.raises(RuntimeError, match="CUDA failed"):
        CopyBack(filler, VALUES, None, PART).finish()
