"""``E3M0`` beside its formula in NumPy, byte for byte."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bluecomm.compression import E3M0
from tests.unit.bluecomm.compression.encoding import (
    check_code,
    check_not_finite,
    decoded,
    encoded,
)

TYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_EXPONENT = {torch.float32: 127, torch.bfloat16: 127, torch.float16: 15}


def exponent_of(magnitudes):
    """Return the exponent of the nearest power of two, -10000 for 0."""
    fraction, exponent = np.frexp(magnitudes.astype(np.float64))
    return np.where(magnitudes > 0, exponent - (fraction < 0.75), -10_000)


def oracle(values, chunk, dtype=torch.float32):
    """Return the bytes of float32 ``values``, and the values that they stand for."""
    tops, codes, back = [], np.zeros(values.size + values.size % 2, np.uint8), []
    for first in range(0, values.size, chunk):
        part = values[first : first + chunk].astype(np.float64)
        nearest = exponent_of(np.abs(part))
        top = int(np.clip(nearest.max(), -119, LARGEST_EXPONENT[dtype]))
        level = np.clip(nearest - top + 7, 1, 7)
        level[np.abs(part) < 2.0 ** (top - 7)] = 0
        tops.append(top + 127)
        signs = np.where((part < 0) & (level > 0), 8, 0)
        codes[first : first + part.size] = level | signs
        near = np.where(level > 0, 2.0 ** (top - 7 + level), 0.0)
        back.append(np.where(part < 0, -near, near) + 0.0)
    packed = codes[::2] | codes[1::2] << 4
    return (
        np.concatenate([np.array(tops, np.uint8), packed]),
        np.concatenate([*back, np.zeros(0)]).astype(np.float32),
    )


def check(values, chunk):
    check_code(E3M0(chunk), values, *oracle(values, chunk))


@pytest.mark.parametrize("chunk", [2, 10, 256, 1 << 20])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 9, 10, 11, 255, 256, 257, 3000])
def test_bytes_and_values_follow_the_formula(count, chunk):
    random = np.random.default_rng(count + chunk)
    values = random.standard_normal(count).astype(np.float32)
    check(values, chunk)
    check(values * np.exp2(random.integers(-140, 120, count)).astype("f4"), chunk)
    # Powers of two, and the values half way between them.
    steps = np.exp2(random.integers(-9, 1, count)) * random.choice([1, 1.5, -1.5])
    check(steps.astype(np.float32), chunk)
    check(np.where(values < 0, -0.0, 0.0).astype(np.float32), chunk)
    check(np.full(count, np.finfo(np.float32).max), chunk)
    check(np.full(count, -np.finfo(np.float32).smallest_subnormal), chunk)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=90),
    st.sampled_from([2, 16, 40, 256]),
)
def test_any_values_follow_the_formula(values, chunk):
    check(np.array(values, np.float32), chunk)


def test_the_error_is_at_most_a_third_down_to_a_64th_of_the_top():
    values = torch.rand(10_000, generator=torch.Generator().manual_seed(1)) + 1 / 64
    codec = E3M0()
    code, _ = encoded(codec, values)
    assert code.numel() == 5000 + 40
    near = decoded(codec, code, 10_000)
    assert ((near - values).abs() / values).max() <= 1 / 3 + 1e-6
    values[0], values[1] = 1.0, 1 / 128
    values[2], values[3] = 0.0078, -1 / 128
    values[:256].clamp_(max=1.0)
    near = decoded(codec, encoded(codec, values)[0], 10_000)
    assert near[:4].tolist() == [1.0, 1 / 64, 0.0, -1 / 64]


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_half_types_are_encoded_as_float32(dtype):
    torch.manual_seed(1)
    values = torch.randn(1000).to(dtype)
    values[:256] = torch.finfo(dtype).max
    codec = E3M0()
    code, finite = encoded(codec, values)
    assert finite
    expected, back = oracle(values.float().numpy(), 256, dtype)
    np.testing.assert_array_equal(code.numpy(), expected)
    near = decoded(codec, code, 1000, dtype)
    assert torch.equal(near, torch.from_numpy(back).to(dtype))
    assert near.isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_chunk_that_is_not_finite_is_decoded_as_nan(bad, dtype):
    check_not_finite(E3M0(32), bad, dtype)


def test_bad_arguments_are_refused():
    for chunk in (0, -2, 7):
        with pytest.raises(ValueError, match=f"positive and even, got {chunk}"):
            E3M0(chunk)
