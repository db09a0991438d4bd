"""Calls of codecs with memory of their own, for tests."""

import numpy as np
import torch


def encoded(codec, values):
    """Return the bytes of values, and whether all of them are finite."""
    nbytes = codec.encoded_nbytes(values.numel(), values.dtype)
    code = torch.full((nbytes,), 77, dtype=torch.uint8)
    return code, codec.encode(values, code)


def decoded(codec, code, count, dtype=torch.float32):
    """Return the values of bytes."""
    values = torch.full((count,), 77.0, dtype=dtype)
    codec.decode(code, values)
    return values


def check_code(codec, values, expected, back):
    """Compare the bytes of float32 ``values``, and what they stand for, bit by bit."""
    code, finite = encoded(codec, torch.from_numpy(values))
    assert finite
    np.testing.assert_array_equal(code.numpy(), expected)
    near = decoded(codec, code, values.size).numpy()
    np.testing.assert_array_equal(near.view(np.int32), back.view(np.int32))


def check_threads(codec, values):
    """Compare the bytes of float32 ``values``, and what they stand for, by threads."""
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            code, finite = encoded(codec, values)
            assert finite
            results.append((code, decoded(codec, code, values.numel())))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def check_sum(codec, values):
    """Compare ``add`` with ``decode`` and torch's sum, bit by bit."""
    code, _ = encoded(codec, values)
    torch.manual_seed(8)
    before = torch.randn(values.numel()).to(values.dtype)
    total = before.clone()
    codec.add(code, total)
    near = decoded(codec, code, values.numel(), values.dtype)
    torch.testing.assert_close(total, before + near, rtol=0, atol=0, equal_nan=True)


def check_not_finite(codec, bad, dtype):
    """Check that a bad value turns its chunk of 32 values into NaN, and no other."""
    for position in (32, 40, 63, 70):
        values = -torch.ones(71, dtype=dtype)
        values[position] = bad
        code, finite = encoded(codec, values)
        assert not finite
        back = decoded(codec, code, 71, dtype)
        is_in_chunk = torch.arange(71) // 32 == position // 32
        assert torch.equal(back.isnan(), is_in_chunk)
        assert (back[~is_in_chunk] == -1).all()
