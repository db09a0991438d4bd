"""``TopK`` beside a sort in NumPy, byte for byte."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bluecomm.compression import TopK, top_k
from tests.unit.bluecomm.compression.encoding import check_code, decoded, encoded

TYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(params=[1, 3], autouse=True, scope="module")
def threads(request):
    number = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_k, "_PART", 1)
        torch.set_num_threads(request.param)
        yield
    torch.set_num_threads(number)


def oracle(values, k):
    """Return the bytes of float32 ``values``, and the values that they stand for."""
    where = np.sort(np.argsort(-np.abs(values), kind="stable")[:k])
    back = np.zeros_like(values)
    back[where] = values[where]
    data = values[where].tobytes() + where.astype(np.uint32).tobytes()
    return np.frombuffer(data, np.uint8), back


def check(values, k):
    check_code(TopK(k), values, *oracle(values, k))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 4095, 4096, 4097, 20_000])
def test_bytes_and_values_follow_the_formula(count):
    random = np.random.default_rng(count)
    values = random.standard_normal(count).astype(np.float32)
    wide = values * np.exp2(random.integers(-140, 120, count)).astype(np.float32)
    for k in {1, 2, count // 64, count // 2, count - 1, count} & {*range(1, count + 1)}:
        check(values, k)
        check(wide, k)


def test_of_equal_magnitudes_the_first_are_kept():
    random = np.random.default_rng(5)
    for k in (1, 2, 700, 4999, 5000):
        check(np.zeros(5000, np.float32), k)
        check(np.full(5000, -2.5, np.float32), k)
        check(random.integers(-3, 4, 5000).astype(np.float32), k)
        values = np.where(random.random(5000) < 0.5, -0.0, 0.0).astype(np.float32)
        values[4990] = np.float32(1)
        values[4991] = np.nextafter(np.float32(1), np.float32(2))
        check(values, k)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_values_follow_the_formula(data):
    floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
    values = data.draw(st.lists(floats, min_size=1, max_size=60))
    k = data.draw(st.integers(1, len(values)))
    check(np.array(values, np.float32), k)


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_half_types_keep_their_values(dtype):
    torch.manual_seed(1)
    values = torch.randn(1000).to(dtype)
    codec = TopK(30)
    code, finite = encoded(codec, values)
    assert finite
    assert code.numel() == 30 * 6
    back = decoded(codec, code, 1000, dtype)
    expected = oracle(values.float().numpy(), 30)[1]
    np.testing.assert_array_equal(back.float().numpy(), expected)


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_tensor_that_is_not_finite_is_decoded_as_nan(bad, dtype):
    values = torch.ones(1000, dtype=dtype)
    values[567] = bad
    codec = TopK(10)
    code, finite = encoded(codec, values)
    assert not finite
    assert decoded(codec, code, 1000, dtype).isnan().all()
    values[568] = bad
    assert torch.equal(encoded(codec, values)[0], code)


def test_bytes_may_begin_anywhere_and_values_may_require_gradients():
    values = torch.tensor([1.0, -3.0, 2.0], requires_grad=True)
    codec, memory = TopK(2), torch.zeros(18, dtype=torch.uint8)
    assert codec.encode(values, memory[1:17])
    near = torch.empty(3, requires_grad=True)
    codec.decode(memory[1:17], near)
    assert near.tolist() == [0.0, -3.0, 2.0]
    assert memory[[0, 17]].tolist() == [0, 0]


def test_values_that_grow_meanwhile_are_not_written_beyond_the_end():
    codec, picked = TopK(1), np.zeros(4, np.float32)
    positions = np.zeros(4, np.int32)
    # One value was expected to reach 1.0, and three do.
    values, bound = np.array([1, 2, 3], np.float32), 0x3F800000
    ends, ties, starts = (np.array(one) for one in ([0, 3], [1], [0, 1]))
    codec._kernels._cpu.pick(
        *(values, ends, bound, ties, starts, picked, positions, 0, 1)
    )
    assert picked.tolist() == [1, 0, 0, 0]
    assert positions.tolist() == [0, 0, 0, 0]


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        TopK(0)
    code = torch.empty(24, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"k=3 needs a tensor of 3 to .*, got 2; use"):
        TopK(3).encode(torch.ones(2), code)
    with pytest.raises(ValueError, match=r"k=3 needs a tensor of 3 to .*, got 0; use"):
        TopK(3).decode(code, torch.empty(0))
    with pytest.raises(ValueError, match="split the tensor"):
        TopK(3).encoded_nbytes(2**32 + 1, torch.float32)
    with pytest.raises(TypeError, match=r"top_k\.encode takes .*float64"):
        TopK(3).encode(torch.ones(4, dtype=torch.float64), code)
    code, _ = encoded(TopK(3), torch.ones(4))
    code[-4:] = torch.tensor([3, 0, 0, 0])
    with pytest.raises(ValueError, match="position 3 for a tensor of 3 values"):
        TopK(3).decode(code, torch.empty(3))
