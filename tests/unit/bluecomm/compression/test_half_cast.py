"""``HalfCast`` beside NumPy's float16 and the bits of bfloat16."""

import math

import numpy as np
import pytest
import torch

from bluecomm.compression import HalfCast
from tests.unit.bluecomm.compression.encoding import decoded, encoded

# The last one has more than one block.
COUNTS = [0, 1, 4095, 4096, 4097, (1 << 17) + 3]
KINDS = [torch.float16, torch.bfloat16]


def halves(values, dtype):
    """Return the bits of float32 ``values`` after the cast."""
    if dtype == torch.float16:
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32).astype(np.uint64)
    # Half to even: below one half without the last bit that stays, one half with it.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_bytes_and_values_follow_the_formula(count, dtype):
    random = np.random.default_rng(count)
    values = random.standard_normal(count).astype(np.float32)
    values *= np.exp2(random.integers(-30, 15, count)).astype(np.float32)
    codec = HalfCast(dtype)
    code, finite = encoded(codec, torch.from_numpy(values))
    assert finite
    bits = halves(values, dtype)
    np.testing.assert_array_equal(code.numpy(), bits.view(np.uint8))
    exact = torch.from_numpy(bits.view(np.int16)).view(dtype).float()
    assert torch.equal(decoded(codec, code, count), exact)


@pytest.mark.parametrize("dtype", KINDS)
def test_ties_are_rounded_to_even(dtype):
    eps = torch.finfo(dtype).eps
    values = torch.tensor([1 + eps / 2, 1 + 3 * eps / 2, -1 - eps / 2])
    codec = HalfCast(dtype)
    code, _ = encoded(codec, values)
    assert decoded(codec, code, 3).tolist() == [1, 1 + 2 * eps, -1]


@pytest.mark.parametrize("dtype", KINDS)
def test_float64_is_rounded_to_float32_first(dtype):
    middle = 1 + torch.finfo(dtype).eps / 2
    values = torch.tensor([middle + 2.0**-40], dtype=torch.float64)
    codec = HalfCast(dtype)
    code, _ = encoded(codec, values)
    assert decoded(codec, code, 1, torch.float64).tolist() == [1]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("source", HalfCast.dtypes)
def test_values_that_half_of_the_bits_cannot_hold_are_decoded_as_nan(dtype, source):
    bad = [math.inf, -math.inf, math.nan, 3.4e38, -3.4e38]
    codec = HalfCast(dtype)
    # Alone, because one that is overlooked beside another would be found with it.
    for value in bad:
        values = torch.linspace(-2, 1, 1000, dtype=source)
        values[500] = value
        code, finite = encoded(codec, values)
        assert not finite
        back = decoded(codec, code, 1000, source)
        assert back.dtype == source
        assert back.isnan().nonzero().tolist() == [[500]]
        # All of them have the same bytes.
        alone, _ = encoded(codec, values.new_tensor([math.nan]))
        assert torch.equal(code[1000:1002], alone)


def test_bytes_may_begin_anywhere_and_values_may_require_gradients():
    values = torch.tensor([1.0, -1.0, 0.5], requires_grad=True)
    codec, memory = HalfCast(), torch.zeros(8, dtype=torch.uint8)
    assert codec.encode(values, memory[1:7])
    near = torch.empty(3, requires_grad=True)
    codec.decode(memory[1:7], near)
    assert torch.equal(near, values)
    assert memory[[0, 7]].tolist() == [0, 0]


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"dtype must be .*, got torch\.float32"):
        HalfCast(torch.float32)
    code = torch.empty(8, dtype=torch.uint8)
    with pytest.raises(TypeError, match=r"half_cast_bfloat16\.encode takes .*float16"):
        HalfCast().encode(torch.ones(4, dtype=torch.float16), code)
    with pytest.raises(ValueError, match=r"the bytes as a flat tensor of 6 x .*\(8,\)"):
        HalfCast().decode(code, torch.empty(3))
