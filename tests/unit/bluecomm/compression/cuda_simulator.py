"""Runs the kernels for GPUs under Numba's simulator, and compares them bit by bit.

A process of its own: ``NUMBA_ENABLE_CUDASIM`` counts when Numba is imported. Codecs
get tensors on the CPU there, but run the kernels for GPUs.
"""

import importlib
import math
import sys

import numpy as np
import pytest
import torch
from numba import cuda

from bluecomm.compression import (
    E3M0,
    ChunkedTopK,
    MinMaxUInt8,
    QuantizedTopK,
    RandomK,
    ScaledSign,
    TopK,
    top_k,
)
from bluecomm.compression.codec import Pieces
from bluecomm.compression.kernels.chunk_kernels import ChunkKernels
from bluecomm.device import cuda_launch
from tests.unit.bluecomm.compression import (
    test_chunked_top_k,
    test_e3m0,
    test_min_max_uint8,
    test_quantized_top_k,
    test_random_k,
    test_scaled_sign,
    test_top_k,
)
from tests.unit.bluecomm.compression.encoding import decoded, encoded

# (codec, modules of its kernels, bytes and values by the formula)
CASES = [
    (
        MinMaxUInt8(40),
        ["min_max"],
        lambda values: (
            test_min_max_uint8.oracle(values, 40),
            test_min_max_uint8.rounded(values, 40),
        ),
    ),
    (
        ScaledSign(40),
        ["scaled_sign"],
        lambda values: test_scaled_sign.oracle(values, 40),
    ),
    (E3M0(40), ["e3m0"], lambda values: test_e3m0.oracle(values, 40)),
    # Most inputs have one chunk, of which this is an odd share.
    (
        ChunkedTopK(9),
        ["chunked_top_k"],
        lambda values: test_chunked_top_k.oracle(values, 9),
    ),
    (
        QuantizedTopK(9),
        ["chunked_top_k", "quantized_top_k"],
        lambda values: test_quantized_top_k.oracle(values, 9),
    ),
]
launched = []


def inputs():
    """Return tensors with chunk borders, zeros, ties and wide ranges."""
    random = np.random.default_rng(1)
    for count in (1, 7, 40, 41, 97):
        yield random.standard_normal(count).astype(np.float32)
    wide = random.standard_normal(97) * np.exp2(random.integers(-140, 100, 97))
    yield wide.astype(np.float32)
    # Halves between levels, and powers of two and the values half way between them.
    yield (random.integers(-510, 511, 97) / 2).astype(np.float32)
    steps = np.exp2(random.integers(-9, 1, 97)) * random.choice([1, 1.5, -1.5], 97)
    yield steps.astype(np.float32)
    yield np.zeros(41, np.float32)
    yield np.full(41, -np.finfo(np.float32).smallest_subnormal)


def use_cuda_kernels(patched, modules):
    """Let codecs run the kernels for GPUs, and note which."""
    launch = cuda_launch.launch

    def noted(kernel, chunks, arguments, *, walks):
        assert kernel.__module__.rpartition(".")[2] in modules
        launched.append(kernel.__name__)
        launch(kernel, chunks, arguments, walks=walks)

    patched.setattr(cuda_launch, "launch", noted)
    patched.setattr(ChunkKernels, "_is_for_cuda", staticmethod(lambda _: True))


def use_threads(patched, count):
    """Let blocks have so many threads, but at most 16 if they wait for each other."""
    patched.setattr(cuda_launch, "_THREADS", count)
    patched.setattr(cuda_launch, "_WALKING_THREADS", min(count, 16))


def check_finite(codec, values, oracle):
    code, finite = encoded(codec, torch.from_numpy(values))
    assert finite
    expected, back = oracle(values)
    np.testing.assert_array_equal(code.numpy(), expected)
    near = decoded(codec, code, values.size).numpy()
    np.testing.assert_array_equal(near.view(np.int32), back.view(np.int32))


def check_not_finite(codec, on_cpu, bad, dtype, position):
    values = torch.linspace(-1, 2, 97).to(dtype)
    values[position] = bad
    code, finite = encoded(codec, values)
    assert not finite
    back = decoded(codec, code, 97, dtype)
    assert torch.equal(code, on_cpu[0])
    torch.testing.assert_close(back, on_cpu[1], rtol=0, atol=0, equal_nan=True)
    expected = 40 if position < 80 else 17
    assert back.isnan().sum() == (97 if isinstance(codec, ChunkedTopK) else expected)


def check_chunked(codec, oracle):
    """Check ties, two chunks, all values, and positions beyond the end."""
    random = np.random.default_rng(2)
    check_finite(codec, random.integers(-3, 4, 97).astype(np.float32), oracle)
    check_finite(codec, random.standard_normal(4096 + 5).astype(np.float32), oracle)
    code, _ = encoded(codec, torch.ones(3))
    # The last byte has the upper bits of the last position.
    code[-1] = 255
    with pytest.raises(ValueError, match=r"\.decode got a position beyond the end"):
        decoded(codec, code, 3)


def check_top_k(patched):
    """Check ties and all values, in three parts of a tensor."""
    patched.setattr(top_k, "_PART", 1)
    torch.set_num_threads(3)
    random = np.random.default_rng(3)
    ties = random.integers(-3, 4, 97).astype(np.float32)
    for values in (*inputs(), ties):
        for k in {1, 9, values.size} & {*range(values.size + 1)}:
            check_finite(TopK(k), values, lambda v, k=k: test_top_k.oracle(v, k))
    for bad in (math.nan, -math.inf):
        values = torch.ones(97)
        values[50] = bad
        code, finite = encoded(TopK(9), values)
        assert not finite
        assert decoded(TopK(9), code, 97).isnan().all()
    assert set(launched) == {"count_upper", "count_lower", "pick"}


def check_random_k(patched):
    """Check two parts of the positions, and all positions."""
    for count, k, *seed in ((97, 97, test_random_k.LAST, 3), (4097, 300, 1, 7)):
        values = np.linspace(-3, 2, count, dtype=np.float32)
        where = test_random_k.drawn(count, k, *seed)
        back = np.zeros_like(values)
        back[where] = values[where]
        expected = values[where].view(np.uint8), back
        check_finite(RandomK(k, *seed), values, lambda _, known=expected: known)
    assert set(launched) == {"draw"}


def in_pieces():
    """Return the codes and values of pieces, whose chunks begin anywhere."""
    codec = MinMaxUInt8(11)
    layout = Pieces(25, 40 + codec.encoded_nbytes(25, torch.float32), 40)
    found = []
    for bad in (None, 30, 96):
        values = torch.linspace(-1, 2, 97)
        if bad is not None:
            values[bad] = math.nan
        codes = torch.full((4 * layout.stride,), 7, dtype=torch.uint8)
        well = codec.start_encode_pieces(values, codes, layout)
        assert bool(well) is (bad is None)
        back = torch.zeros(97)
        codec.decode_pieces(codes[40:], back, layout._replace(offset=0))
        found += [codes, back.view(torch.int32)]
    return found


def cpu_results(codec, bad, dtype, position):
    values = torch.linspace(-1, 2, 97).to(dtype)
    values[position] = bad
    code, _ = encoded(codec, values)
    return code, decoded(codec, code, 97, dtype)


def main():
    assert "simulator" in cuda.jit.__module__
    for codec, names, oracle in CASES:
        modules = [f"{name}_cuda" for name in names]
        for module in modules:
            importlib.import_module(f"bluecomm.compression.kernels.{module}")
        bad_cases = [
            (math.nan, torch.float32, 5),
            (math.inf, torch.float16, 45),
            (-math.inf, torch.bfloat16, 96),
            (-math.nan, torch.float16, 79),
        ]
        on_cpu = [cpu_results(codec, *one) for one in bad_cases]
        # The extremes of zeros with both signs: NumPy may return either one.
        zeros = np.where(np.arange(41) % 3, -0.0, 0.0).astype(np.float32)
        code, _ = encoded(codec, torch.from_numpy(zeros))
        zeros_on_cpu = code.numpy(), decoded(codec, code, 41).numpy()
        launched.clear()
        with pytest.MonkeyPatch.context() as patched:
            use_cuda_kernels(patched, modules)
            # Fewer threads than values, lanes and bytes, so that all loops are needed.
            use_threads(patched, 3)
            for values in inputs():
                check_finite(codec, values, oracle)
            for one, expected in zip(bad_cases, on_cpu, strict=True):
                check_not_finite(codec, expected, *one)
            use_threads(patched, 64)
            check_finite(codec, next(inputs()), oracle)
            check_finite(codec, np.linspace(-3, 2, 97, dtype=np.float32), oracle)
            check_finite(codec, zeros, lambda _, known=zeros_on_cpu: known)
            assert encoded(codec, torch.empty(0))[1]
            if isinstance(codec, ChunkedTopK):
                check_chunked(codec, oracle)
        expected = {"encode", "decode"}
        if isinstance(codec, QuantizedTopK):
            expected |= {"quantize", "restore"}
        if isinstance(codec, MinMaxUInt8):
            expected |= {"encode_pieces", "decode_pieces"}
        assert set(launched) == expected
        print(codec.name, len(launched))
    expected = in_pieces()
    with pytest.MonkeyPatch.context() as patched:
        use_cuda_kernels(patched, ["min_max_cuda"])
        use_threads(patched, 3)
        found = in_pieces()
    assert all(map(torch.equal, found, expected))
    for check in (check_top_k, check_random_k):
        name = check.__name__.removeprefix("check_")
        importlib.import_module(f"bluecomm.compression.kernels.{name}_cuda")
        launched.clear()
        with pytest.MonkeyPatch.context() as patched:
            use_cuda_kernels(patched, [f"{name}_cuda"])
            use_threads(patched, 3)
            check(patched)
        print(name, len(launched))


if __name__ == "__main__":
    sys.exit(main())
