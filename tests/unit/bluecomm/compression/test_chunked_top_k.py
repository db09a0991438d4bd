"""``ChunkedTopK`` beside a sort in NumPy, byte for byte."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bluecomm.compression import ChunkedTopK, QuantizedTopK
from tests.unit.bluecomm.compression.encoding import (
    check_code,
    decoded,
    encoded,
)

COUNTS = [0, 1, 2, 63, 64, 65, 4095, 4096, 4097, 4096 + 63, 4 * 4096 + 700]
TYPES = (torch.float32, torch.float16, torch.bfloat16)


def pack(positions):
    """Return positions of 12 bits each as bytes, the first one in the lowest bits."""
    number = sum(int(one) << 12 * i for i, one in enumerate(positions))
    return number.to_bytes((12 * len(positions) + 7) // 8, "little")


def chosen(part, k):
    """Return the positions of the k largest magnitudes, ascending."""
    return np.sort(np.argsort(-np.abs(part), kind="stable")[:k])


def oracle(values, k):
    """Return the bytes of float32 ``values``, and the values that they stand for."""
    kept, positions, back = b"", b"", np.zeros_like(values)
    for start in range(0, values.size, 4096):
        part = values[start : start + 4096]
        where = chosen(part, k)
        kept += part[where].tobytes()
        positions += pack(where)
        back[start + where] = part[where]
    return np.frombuffer(kept + positions, np.uint8), back


def check(values, k):
    check_code(ChunkedTopK(k), values, *oracle(values, k))


@pytest.mark.parametrize("k", [1, 3, 64, 511, 512, 513, 4095, 4096])
@pytest.mark.parametrize("count", COUNTS)
def test_bytes_and_values_follow_the_formula(count, k):
    random = np.random.default_rng(count + k)
    values = random.standard_normal(count).astype(np.float32)
    values *= np.exp2(random.integers(-140, 120, count)).astype(np.float32)
    check(values, k)


@pytest.mark.parametrize("k", [1, 64, 600])
def test_of_equal_magnitudes_the_first_are_kept(k):
    random = np.random.default_rng(k)
    check(np.zeros(5000, np.float32), k)
    check(np.full(5000, -2.5, np.float32), k)
    check(random.integers(-3, 4, 9000).astype(np.float32), k)
    # Half of the zeros are negative, and two values differ in their last bit.
    values = np.where(random.random(5000) < 0.5, -0.0, 0.0).astype(np.float32)
    values[77] = np.float32(1)
    values[78] = np.nextafter(np.float32(1), np.float32(2))
    check(values, k)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=90),
    st.integers(0, 4200),
    st.integers(1, 100),
)
def test_any_values_follow_the_formula(few, zeros, k):
    check(np.array(few + [0.0] * zeros, np.float32), k)


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_half_types_keep_their_values(dtype):
    torch.manual_seed(1)
    values = torch.randn(4096 + 100).to(dtype)
    codec = ChunkedTopK(32)
    code, finite = encoded(codec, values)
    assert finite
    assert code.numel() == 2 * (2 * 32 + 48)
    back = decoded(codec, code, values.numel(), dtype)
    expected = oracle(values.float().numpy(), 32)[1]
    np.testing.assert_array_equal(back.float().numpy(), expected)


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k", [1, 64, 4096])
@pytest.mark.parametrize("kind", [ChunkedTopK, QuantizedTopK])
def test_a_chunk_that_is_not_finite_is_decoded_as_nan(bad, dtype, k, kind):
    values = torch.ones(2 * 4096 + 50, dtype=dtype)
    values[4096 + 1234] = bad
    codec = kind(k)
    code, finite = encoded(codec, values)
    assert not finite
    back = decoded(codec, code, values.numel(), dtype)
    assert back[4096:8192].isnan().all()
    assert not torch.cat([back[:4096], back[8192:]]).isnan().any()
    sums = torch.ones_like(back)
    codec.add(code, sums)
    assert torch.equal(sums.isnan(), back.isnan())
    values[4096 + 4000] = bad
    assert torch.equal(encoded(codec, values)[0], code)


class Growing:
    """The bits of 4096 values that are 1.0 when they are read first, and 2.0 later."""

    size = 4096

    def __init__(self):
        self.reads = 0

    def view(self, dtype):
        return self

    def __getitem__(self, key):
        if isinstance(key, slice):
            return self
        self.reads += 1
        return np.int32(0x3F800000 if self.reads <= 4096 else 0x40000000)


def test_values_that_grow_meanwhile_are_not_written_beyond_the_end():
    picked, packed = np.zeros(2, np.float32), np.zeros(3, np.uint8)
    from bluecomm.compression.kernels import chunked_top_k_cpu

    chunked_top_k_cpu.encode.py_func(Growing(), picked, packed, 2, 0, 1)
    assert packed.tolist() == [0, 1 << 4, 0]


def test_bad_arguments_are_refused():
    for k in (0, 4097):
        with pytest.raises(ValueError, match=rf"k must be from 1 to 4096, .* got {k}"):
            ChunkedTopK(k)
    code, _ = encoded(ChunkedTopK(2), torch.ones(3))
    assert code[8:].tolist() == [0, 1 << 4, 0]
    # The second position becomes 3, one beyond the end.
    code[9] = 3 << 4
    with pytest.raises(ValueError, match=r"position beyond .* of 3 values; .*k=2"):
        ChunkedTopK(2).decode(code, torch.empty(3))
    codes = torch.stack([encoded(ChunkedTopK(2), torch.ones(3))[0], code])
    with pytest.raises(ValueError, match=r"chunked_top_k\.add_mean got a position bey"):
        ChunkedTopK(2).add_mean(codes, torch.zeros(3))
    with pytest.raises(ValueError, match=r"add_mean expects the bytes as a flat"):
        ChunkedTopK(2).add_mean(codes[:, 1:], torch.zeros(3))
