import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bluecomm.optim.buckets.bucket import FIRST_BUCKET_NBYTES, build_buckets

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def build(parameters, nbytes=1 << 20):
    named = [(f"p{number}", p) for number, p in enumerate(parameters)]
    return build_buckets(named, prefix="b", bucket_nbytes=nbytes)


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.sampled_from(DTYPES)), min_size=1, max_size=20
    ),
    st.sampled_from([1, 64, 1000, 1 << 20]),
)
def test_each_parameter_has_a_slot(shapes, nbytes):
    parameters = [torch.zeros(numel, dtype=dtype) for numel, dtype in shapes]
    buckets = build(parameters, nbytes)
    slots = [slot for bucket in buckets for slot in bucket.slots]
    assert sorted(slot.name for slot in slots) == sorted(
        f"p{number}" for number in range(len(parameters))
    )
    for bucket in buckets:
        end = 0
        for slot in bucket.slots:
            assert slot.parameter.dtype == bucket.dtype
            assert slot.offset * bucket.dtype.itemsize % 64 == 0
            assert slot.offset >= end
            end = slot.offset + slot.parameter.numel()
        assert end <= bucket.numel
        # A bucket has several parameters only if they stay below the limit.
        assert len(bucket.slots) == 1 or bucket.slots[-1].offset * (
            bucket.dtype.itemsize
        ) <= max(nbytes, FIRST_BUCKET_NBYTES)


def test_the_order_is_that_of_ready_gradients():
    buckets = build([torch.zeros(4) for _ in range(4)], nbytes=128)
    assert [[slot.name for slot in bucket.slots] for bucket in buckets] == [
        ["p3", "p2"],
        ["p1", "p0"],
    ]
    assert [bucket.name for bucket in buckets] == ["b.0", "b.1"]


def test_buckets_grow_from_a_small_one():
    quarter = torch.zeros(FIRST_BUCKET_NBYTES // 16)
    buckets = build([quarter] * 30, nbytes=3 * FIRST_BUCKET_NBYTES)
    assert [len(bucket.slots) for bucket in buckets] == [4, 8, 12, 6]


def test_a_large_parameter_is_a_bucket_of_its_own():
    small = torch.zeros(1)
    buckets = build([small, torch.zeros(1000), small], nbytes=256)
    assert [len(bucket.slots) for bucket in buckets] == [1, 1, 1]


@pytest.mark.parametrize("lay_out", ["parameters", "gradients"])
def test_the_algorithm_chooses_the_layout(lay_out):
    (bucket,) = build([torch.zeros(3)])
    if lay_out == "parameters":
        bucket.lay_out_parameters()
        assert bucket.parameters.current.numel() == bucket.numel == 16
    else:
        bucket.lay_out_gradients(counters=2)
        assert bucket.gradients.flat.numel() == 16 + 2 * 1 + 2
    assert repr(bucket) == "<Bucket 'b.0': 1 parameters, torch.float32>"
