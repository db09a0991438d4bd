"""``QuantizedTopK`` beside its formula in NumPy, byte for byte."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bluecomm.compression import QuantizedTopK
from tests.unit.bluecomm.compression.encoding import (
    check_code,
    decoded,
    encoded,
)
from tests.unit.bluecomm.compression.test_chunked_top_k import COUNTS, chosen, pack

TYPES = (torch.float32, torch.float16, torch.bfloat16)


def in_order(values):
    """Return the sum of float64 values, added to 0 one after the other."""
    return np.cumsum([0.0, *values])[-1]


def quantized(values):
    """Return the levels of the float32 values of a chunk, and the level of each."""
    wide = values.astype(np.float64)
    centered = wide - in_order(wide) / wide.size
    deviation = math.sqrt(in_order(centered**2) / wide.size)
    scale = 6 * deviation / 4 or 1.0
    numbers = np.clip(np.rint(centered / scale + 2), 0, 3).astype(int)
    levels = np.zeros(4, np.float32)
    for level in set(numbers):
        mine = wide[numbers == level]
        levels[level] = in_order(mine) / mine.size
    return levels, numbers


def oracle(values, k):
    """Return the bytes of float32 ``values``, and the values that they stand for."""
    tables, codes, positions, back = b"", b"", b"", np.zeros_like(values)
    for start in range(0, values.size, 4096):
        part = values[start : start + 4096]
        where = chosen(part, k)
        levels, numbers = quantized(part[where])
        tables += levels.tobytes()
        whole = sum(int(one) << 2 * i for i, one in enumerate(numbers))
        codes += whole.to_bytes((len(numbers) + 3) // 4, "little")
        positions += pack(where)
        back[start + where] = levels[numbers]
    return np.frombuffer(tables + codes + positions, np.uint8), back


def check(values, k):
    check_code(QuantizedTopK(k), values, *oracle(values, k))


@pytest.mark.parametrize("k", [1, 2, 3, 64, 513, 4096])
@pytest.mark.parametrize("count", COUNTS)
def test_bytes_and_values_follow_the_formula(count, k):
    random = np.random.default_rng(count + k)
    values = random.standard_normal(count).astype(np.float32)
    check(values, k)
    # From subnormal numbers to the largest ones.
    wide = values * np.exp2(random.integers(-140, 126, count)).astype(np.float32)
    check(wide, k)


def test_equal_values_are_exact():
    for value in (0.0, -2.5, 3e38, 1e-45):
        check(np.full(5000, value, np.float32), 64)
        code, _ = encoded(QuantizedTopK(), torch.full((64,), value))
        assert decoded(QuantizedTopK(), code, 64).tolist() == [np.float32(value)] * 64


def test_halves_are_rounded_to_even():
    # The mean is 0 and the scale 12, so -6 and 6 are halfway between two bins.
    values = np.array([-12, -6, 2, 6, 10], np.float32)
    check(values, 64)
    code, _ = encoded(QuantizedTopK(), torch.from_numpy(values))
    middle = float(np.float32(2 / 3))
    back = decoded(QuantizedTopK(), code, 5).tolist()
    assert back == [-12.0, middle, middle, middle, 10.0]


def test_opposite_values_do_not_cancel():
    check(np.array([1.0, -1.0], np.float32), 64)
    code, _ = encoded(QuantizedTopK(), torch.tensor([1.0, -1.0]))
    assert decoded(QuantizedTopK(), code, 2).tolist() == [1.0, -1.0]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=90),
    st.integers(0, 4200),
    st.integers(1, 100),
)
def test_any_values_follow_the_formula(few, zeros, k):
    check(np.array(few + [0.0] * zeros, np.float32), k)


def test_a_chunk_of_64_values_takes_128_bytes():
    codec = QuantizedTopK()
    for dtype in TYPES:
        assert codec.encoded_nbytes(3 * 4096, dtype) == 3 * 128
    assert codec.encoded_nbytes(4096 + 5, torch.float32) == 128 + 16 + 2 + 8


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_levels_of_half_types_are_rounded_once(dtype):
    torch.manual_seed(1)
    values = torch.randn(4096 + 100).to(dtype)
    codec = QuantizedTopK(32)
    code, finite = encoded(codec, values)
    assert finite
    expected_code, expected = oracle(values.float().numpy(), 32)
    np.testing.assert_array_equal(code.numpy(), expected_code)
    back = decoded(codec, code, values.numel(), dtype)
    assert torch.equal(back, torch.from_numpy(expected).to(dtype))


def test_bad_arguments_are_refused():
    for k in (0, 4097):
        with pytest.raises(ValueError, match=rf"QuantizedTopK: k must be .* got {k}"):
            QuantizedTopK(k)
    code, _ = encoded(QuantizedTopK(2), torch.ones(3))
    # The second position becomes 3, one beyond the end.
    code[18] = 3 << 4
    with pytest.raises(ValueError, match=r"quantized_top_k\.decode got a position"):
        QuantizedTopK(2).decode(code, torch.empty(3))
    with pytest.raises(ValueError, match=r"quantized_top_k\.add got a position beyond"):
        QuantizedTopK(2).add(code, torch.zeros(3))
