"""Groups of parameters that the user wants to be sent together."""

import pytest
import torch

from bluecomm.optim.buckets.bucket import build_buckets
from bluecomm.optim.buckets.grouping import assign_groups


def parameters(count):
    return [(f"p{i}", torch.nn.Parameter(torch.zeros(4 + i))) for i in range(count)]


def names_of(named, groups, nbytes=1 << 20):
    buckets = build_buckets(
        named,
        prefix="b",
        bucket_nbytes=nbytes,
        group_of=assign_groups(groups, named),
    )
    return [[slot.name for slot in bucket.slots] for bucket in buckets]


def test_lists_become_buckets_however_large():
    named = parameters(5)
    first, last = named[0][1], named[4][1]
    got = names_of(named, [[first, last]], nbytes=1)
    assert got == [["p4", "p0"], ["p3"], ["p2"], ["p1"]]


def test_a_number_of_groups_divides_in_order():
    assert names_of(parameters(5), 2) == [["p4", "p3"], ["p2", "p1", "p0"]]
    assert names_of(parameters(2), 5) == [["p1"], ["p0"]]


def test_types_are_in_different_buckets():
    named = [*parameters(1), ("half", torch.nn.Parameter(torch.zeros(4).half()))]
    assert names_of(named, 1) == [["half"], ["p0"]]


def test_wrong_groups():
    named = parameters(2)
    with pytest.raises(TypeError, match="a number or lists of parameters"):
        assign_groups(0.5, named)
    with pytest.raises(ValueError, match="at least 1"):
        assign_groups(0, named)
    with pytest.raises(
        ValueError, match="entry 0 has a tensor that is not a parameter"
    ):
        assign_groups([[torch.zeros(1)]], named)
    with pytest.raises(ValueError, match="entries 0 and 1 have the same parameter"):
        assign_groups([[named[0][1]], [named[0][1]]], named)
