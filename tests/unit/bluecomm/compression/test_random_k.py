"""``RandomK`` beside its formula in plain integers, byte for byte."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bluecomm.compression import RandomK
from tests.unit.bluecomm.compression.encoding import decoded, encoded

TYPES = (torch.float32, torch.float16, torch.bfloat16)
LAST = 2**64 - 1


def mixed(value):
    value &= LAST
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & LAST
    value = (value ^ value >> 27) * 0x94D049BB133111EB & LAST
    return value ^ value >> 31


def drawn(count, k, seed, number):
    """Return the positions by the formula."""
    half = 1
    while 4**half < count:
        half += 1
    keys = [mixed(mixed(mixed(seed) + number) + j) for j in range(6)]
    positions = []
    for position in range(k):
        while True:
            left, right = divmod(position, 2**half)
            for key in keys:
                left, right = right, left ^ mixed(key + right) % 2**half
            position = left * 2**half + right
            if position < count:
                break
        positions.append(position)
    return positions


@pytest.mark.parametrize("seed", [(0, 0), (1, 7), (LAST, LAST)])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 4095, 4096, 4097])
def test_bytes_and_values_follow_the_formula(count, seed):
    torch.manual_seed(count)
    values = torch.randn(count)
    for k in {1, (count + 1) // 2, count}:
        codec = RandomK(k, *seed)
        code, finite = encoded(codec, values)
        assert finite
        where = drawn(count, k, *seed)
        assert len(set(where)) == k
        assert codec.positions(count).tolist() == where
        np.testing.assert_array_equal(
            code.numpy(), values.numpy()[where].view(np.uint8)
        )
        expected = torch.zeros(count)
        expected[where] = values[where]
        assert torch.equal(decoded(codec, code, count), expected)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 3000),
    st.integers(1, 40),
    st.integers(0, LAST),
    st.integers(0, LAST),
)
def test_any_arguments_follow_the_formula(count, k, seed, number):
    k = min(k, count)
    where = RandomK(k, seed).at_round(number).positions(count).tolist()
    assert where == drawn(count, k, seed, number)
    assert len(set(where)) == k


@pytest.mark.parametrize("count", [3, 10, 100])
def test_all_positions_are_kept_equally_often(count):
    rounds, k = 4000, max(1, count // 4)
    codec = RandomK(k, seed=5)
    times = torch.zeros(count)
    for number in range(rounds):
        times[codec.at_round(number).positions(count)] += 1
    share = k / count
    # Five standard deviations of a binomial number; the draws are the same each time.
    spread = 5 * math.sqrt(rounds * share * (1 - share))
    assert float((times - rounds * share).abs().max()) < spread


def test_each_round_and_each_seed_has_positions_of_its_own():
    drawn_by = [RandomK(50, seed, number) for seed in (0, 1) for number in (0, 1)]
    sets = {tuple(codec.positions(4096).tolist()) for codec in drawn_by}
    assert len(sets) == 4


def test_arguments_may_be_whole_numbers_of_other_libraries():
    positions = RandomK(torch.tensor(3), np.uint64(LAST), torch.tensor(2)).positions(99)
    assert positions.tolist() == drawn(99, 3, LAST, 2)


def test_several_threads_draw_the_same_positions():
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            results.append(RandomK(1000, 3).positions(5000))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_tensor_that_is_not_finite_is_decoded_as_nan(bad, dtype):
    codec = RandomK(10)
    for position in (0, 567, 999, int(codec.positions(1000)[3])):
        values = torch.ones(1000, dtype=dtype)
        values[position] = bad
        code, finite = encoded(codec, values)
        assert not finite
        assert decoded(codec, code, 1000, dtype).isnan().all()


@pytest.mark.parametrize("dtype", TYPES)
def test_types_keep_their_values(dtype):
    values = torch.arange(1, 101, dtype=dtype)
    codec = RandomK(30, 2)
    code, finite = encoded(codec, values)
    assert finite
    back = decoded(codec, code, 100, dtype)
    kept = back != 0
    assert int(kept.sum()) == 30
    assert torch.equal(back[kept], values[kept])


def test_bytes_may_begin_anywhere_and_values_may_require_gradients():
    values = torch.tensor([1.0, -3.0], requires_grad=True)
    codec, memory = RandomK(2), torch.zeros(10, dtype=torch.uint8)
    assert codec.encode(values, memory[1:9])
    near = torch.empty(2, requires_grad=True)
    codec.decode(memory[1:9], near)
    assert near.tolist() == [1.0, -3.0]
    assert memory[[0, 9]].tolist() == [0, 0]


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        RandomK(0)
    with pytest.raises(ValueError, match=r"seed must be from 0 to 2\*\*64 - 1, got -1"):
        RandomK(1, -1)
    with pytest.raises(ValueError, match=r"round_number must be from 0 .*, got 18446"):
        RandomK(1).at_round(2**64)
    # Numba would cut off the fraction, so that several rounds had the same positions.
    for arguments in ((1.5,), (1, 0.5), (1, 0, 0.5)):
        with pytest.raises(TypeError, match="'float' object cannot be interpreted as"):
            RandomK(*arguments)
    code = torch.empty(12, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"k=3 needs .* at least 3 values, got 2; use"):
        RandomK(3).encode(torch.ones(2), code)
    with pytest.raises(ValueError, match=r"k=3 needs .* at least 3 values, got 0; use"):
        RandomK(3).decode(code, torch.empty(0))
    with pytest.raises(ValueError, match=r"k=3 needs .* at least 3 values, got 1; use"):
        RandomK(3).positions(1)
    with pytest.raises(TypeError, match=r"random_k\.encode takes .*float64"):
        RandomK(3).encode(torch.ones(4, dtype=torch.float64), code)
