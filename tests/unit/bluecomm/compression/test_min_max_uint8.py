"""``MinMaxUInt8`` beside its formula in NumPy, byte for byte."""

import numpy as np
import pytest
import torch

from bluecomm.compression import MinMaxUInt8
from tests.unit.bluecomm.compression.encoding import (
    check_sum,
    decoded,
    encoded,
)

TYPES = (torch.float32, torch.float16, torch.bfloat16)


def levels(low, high):
    """Return the scale and the highest level, in float32 as the format says."""
    scale = np.float32(255) / ((high - low) + np.float32(1e-7))
    return scale, np.rint(high * scale)


def oracle(values, chunk):
    """Return the bytes of float32 ``values`` by the formula."""
    parts = []
    for part in np.split(values, range(chunk, values.size, chunk)):
        scale, upper = levels(part.min(), part.max())
        code = np.minimum(np.rint(part * scale), upper) - (upper - np.float32(255))
        data = np.stack([part.min(), part.max()]).tobytes().ljust(32, b"\0")
        data += np.clip(code, 0, 255).astype(np.uint8).tobytes()
        parts.append(data + bytes(-part.size % 32))
    return np.frombuffer(b"".join(parts), np.uint8)


def rounded(values, chunk):
    """Return what is decoded for float32 ``values`` by the formula."""
    parts = []
    for part in np.split(values, range(chunk, values.size, chunk)):
        scale, upper = levels(part.min(), part.max())
        stored = np.minimum(np.rint(part * scale), upper) - (upper - np.float32(255))
        level = np.clip(stored, 0, 255) + (upper - np.float32(255))
        parts.append(level / scale)
    return np.concatenate(parts)


@pytest.mark.parametrize("chunk", [1, 31, 32, 100, 1 << 16])
@pytest.mark.parametrize("spread", [(0.0, 1.0), (3.0, 0.01), (0.0, 1e25), (0.0, 1e-9)])
def test_bytes_and_values_follow_the_formula(chunk, spread):
    mean, deviation = map(np.float32, spread)
    random = np.random.default_rng(3)
    values = mean + deviation * random.standard_normal(997).astype(np.float32)
    codec = MinMaxUInt8(chunk)
    code, finite = encoded(codec, torch.from_numpy(values))
    assert finite
    expected = oracle(values, chunk)
    np.testing.assert_array_equal(code.numpy(), expected)
    back = decoded(codec, code, values.size, torch.float32).numpy()
    np.testing.assert_array_equal(back, rounded(values, chunk))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_error_is_at_most_half_a_level(dtype):
    torch.manual_seed(1)
    values = torch.randn(5000).to(dtype)
    codec = MinMaxUInt8(512)
    code, finite = encoded(codec, values)
    assert finite
    back = decoded(codec, code, 5000, dtype)
    assert back.dtype == dtype
    for part, near in zip(values.split(512), back.split(512), strict=True):
        reach = float(part.max() - part.min())
        rounding = torch.finfo(dtype).eps * float(part.abs().max())
        error = float((part.double() - near.double()).abs().max())
        assert error <= reach / 510 + rounding


@pytest.mark.parametrize("dtype", TYPES)
def test_the_head_has_the_extremes_in_the_type_of_the_values(dtype):
    values = torch.tensor([0.5, -2.25, 1.75], dtype=dtype)
    code, _ = encoded(MinMaxUInt8(), values)
    head = code[: 2 * dtype.itemsize].view(dtype)
    assert head.tolist() == [-2.25, 1.75]


@pytest.mark.parametrize("values", [[0.0, -1.0, 1.0], [0.0, 0.0, 0.0], [1e-20, 0.0]])
def test_zero_is_exact(values):
    codec = MinMaxUInt8()
    code, _ = encoded(codec, torch.tensor(values))
    back = decoded(codec, code, len(values), torch.float32)
    for value, near in zip(values, back.tolist(), strict=True):
        assert value != 0.0 or near == 0.0


def test_values_that_are_large_and_close_together_stay_in_their_range():
    values = 1000.0 + 1e-3 * torch.rand(1000)
    codec = MinMaxUInt8()
    code, finite = encoded(codec, values)
    assert finite
    # Bagua's code of the largest value overflows here.
    back = decoded(codec, code, 1000, torch.float32)
    assert float((back - values).abs().max()) <= 2e-3


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_not_finite_reaches_all_who_decode(bad, dtype):
    values = torch.ones(96, dtype=dtype)
    values[40] = bad
    codec = MinMaxUInt8(32)
    code, finite = encoded(codec, values)
    assert not finite
    back = decoded(codec, code, 96, dtype)
    assert back[32:64].isnan().all()
    assert not torch.cat([back[:32], back[64:]]).isnan().any()


@pytest.mark.parametrize("values", [[3e38, -3e38], [1e30, 1e30]])
def test_a_range_or_level_that_overflows_counts_as_infinite(values):
    codec = MinMaxUInt8()
    code, finite = encoded(codec, torch.tensor(values))
    assert not finite
    assert decoded(codec, code, 2, torch.float32).isnan().all()


@pytest.mark.parametrize("head", [[1e-7, 0.0], [-3e38, 3e38]])
def test_heads_that_encode_never_writes_are_decoded_without_an_error(head):
    code = torch.zeros(64, dtype=torch.uint8)
    code[:8] = torch.tensor(head).view(torch.uint8)
    assert not decoded(MinMaxUInt8(), code, 3).isfinite().any()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bad", [0.0, float("inf")])
def test_decoded_values_are_added(dtype, bad):
    torch.manual_seed(4)
    values = torch.randn(997).to(dtype)
    values[500] = bad
    check_sum(MinMaxUInt8(100), values)


def test_bytes_may_begin_anywhere_and_values_may_require_gradients():
    values = torch.tensor([1.0, -1.0, 0.5], requires_grad=True)
    codec, memory = MinMaxUInt8(), torch.zeros(80, dtype=torch.uint8)
    assert codec.encode(values, memory[1:65])
    near = torch.empty(3, requires_grad=True)
    codec.decode(memory[1:65], near)
    torch.testing.assert_close(near, values, rtol=0, atol=2 / 510 + 1e-6)


def test_no_values_need_no_bytes():
    codec = MinMaxUInt8()
    assert codec.encoded_nbytes(0, torch.float32) == 0
    code, finite = encoded(codec, torch.empty(0))
    assert finite
    assert code.numel() == 0
    assert decoded(codec, code, 0, torch.float32).numel() == 0


def test_bad_arguments_are_refused():
    codec = MinMaxUInt8()
    values, code = torch.ones(40), torch.empty(96, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"chunk must be at least 1, got 0"):
        MinMaxUInt8(0)
    with pytest.raises(
        TypeError, match=r"encode takes values of type float32, .*int64"
    ):
        codec.encode(torch.ones(40, dtype=torch.int64), code)
    with pytest.raises(
        ValueError, match=r"the bytes as a flat tensor of 96 x .*\(95,\)"
    ):
        codec.encode(values, code[:95])
    with pytest.raises(ValueError, match=r"the values as a flat tensor .*\(4, 10\)"):
        codec.decode(code, values.view(4, 10))
    with pytest.raises(
        ValueError, match="on CPUs and CUDA GPUs only, got values on meta"
    ):
        codec.encode(torch.ones(40, device="meta"), code)
    with pytest.raises(ValueError, match="contiguous values"):
        codec.encode(torch.ones(80)[::2], code)
