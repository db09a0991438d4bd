"""The choice of a reduction, which calls share."""

from __future__ import annotations

import pytest
import torch

import bluecomm as bf
from bluecomm.ops.reduce_op import reduction


def test_equal_calls_share_their_parameters():
    first = reduction("allreduce", None, None, torch.float32, 2.0, 1.0)
    assert first[0] == "average"
    assert reduction("allreduce", None, None, torch.float32, 2.0, 1.0)[1] is first[1]
    other = reduction("allreduce", None, bf.Sum, torch.float32, 2.0, 1.0)
    assert (other[0], other[1].op, other[1].prescale) == ("sum", "sum", 2.0)


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize(
    ("average", "op", "prescale", "text"),
    [
        (None, None, 1.0, "cannot average tensors of type torch.int32"),
        (False, None, 2.0, "factors need a floating-point type"),
        (True, bf.Sum, 1.0, "pass either average or op"),
    ],
)
def test_a_refusal_is_not_remembered_as_a_choice(attempt, average, op, prescale, text):
    with pytest.raises(ValueError, match=text):
        reduction("allreduce", average, op, torch.int32, prescale, 1.0)
