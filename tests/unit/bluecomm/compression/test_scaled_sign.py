"""``ScaledSign`` beside its formula in NumPy, byte for byte."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bluecomm.compression import ScaledSign
from tests.unit.bluecomm.compression.encoding import (
    check_code,
    check_not_finite,
    decoded,
    encoded,
)

COUNTS = [0, 1, 7, 8, 9, 15, 16, 17, 4095, 4096, 4097, 3 * 4096 + 100]
TYPES = (torch.float32, torch.float16, torch.bfloat16)


def mean_magnitude(part):
    padded = np.pad(np.abs(part).astype(np.float64), (0, -part.size % 16))
    lanes = np.add.accumulate(padded.reshape(-1, 16), axis=0)[-1]
    return np.float32(np.add.accumulate(lanes)[-1] / part.size)


def oracle(values, chunk):
    """Return the bytes of float32 ``values``, and the values that they stand for."""
    parts = [values[i : i + chunk] for i in range(0, values.size, chunk)]
    scales = np.array([mean_magnitude(part) for part in parts], np.float32)
    bits = np.packbits(values < 0, bitorder="little")
    back = np.repeat(scales, chunk)[: values.size]
    back = np.where(values < 0, -back, back)
    return np.frombuffer(scales.tobytes() + bits.tobytes(), np.uint8), back


def check(values, chunk):
    check_code(ScaledSign(chunk), values, *oracle(values, chunk))


@pytest.mark.parametrize("chunk", [8, 24, 4096, 1 << 20])
@pytest.mark.parametrize("count", COUNTS)
def test_bytes_and_values_follow_the_formula(count, chunk):
    random = np.random.default_rng(count + chunk)
    values = random.standard_normal(count).astype(np.float32)
    check(values, chunk)
    check(values * np.exp2(random.integers(-140, 120, count)).astype("f4"), chunk)
    check(np.where(values < 0, -0.0, 0.0).astype(np.float32), chunk)
    check(np.full(count, np.finfo(np.float32).max), chunk)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=90),
    st.sampled_from([8, 16, 40, 4096]),
)
def test_any_values_follow_the_formula(values, chunk):
    check(np.array(values, np.float32), chunk)


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_half_types_are_rounded_when_they_are_decoded(dtype):
    torch.manual_seed(1)
    values = torch.randn(1000).to(dtype)
    values[:256] = torch.finfo(dtype).max
    codec = ScaledSign(256)
    code, finite = encoded(codec, values)
    assert finite
    expected, back = oracle(values.float().numpy(), 256)
    np.testing.assert_array_equal(code.numpy(), expected)
    near = decoded(codec, code, 1000, dtype)
    assert torch.equal(near, torch.from_numpy(back).to(dtype))
    assert near.isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_chunk_that_is_not_finite_is_decoded_as_nan(bad, dtype):
    codec = ScaledSign(32)
    check_not_finite(codec, bad, dtype)
    # Its code does not tell which values are bad.
    values = -torch.ones(71, dtype=dtype)
    values[40] = bad
    code = encoded(codec, values)[0]
    values[32:34] = bad
    assert torch.equal(encoded(codec, values)[0], code)


def test_bad_arguments_are_refused():
    for chunk in (0, -8, 12):
        with pytest.raises(ValueError, match=f"positive multiple of 8, got {chunk}"):
            ScaledSign(chunk)
