"""The codec ``min_max_uint8`` on GPUs: blocks of threads walk over the chunks.

A block reads a chunk twice, for its range and for its codes. A chunk of 65536 values
fills a quarter of a MiB, more than the shared memory of a multiprocessor. So there is
one block for each multiprocessor (see ``cuda_launch``), and the chunks under way fit
into the second-level cache: main memory is read once. The second pass runs backwards,
because what was read last is also in the first-level cache.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from bluecomm.compression.kernels.layout import HEAD, greatest, least, stride_of
from bluecomm.compression.kernels.min_max import LARGEST, SMALLEST, compiled_by

# Without types. A simulator may stand for it.
cuda: Any = importlib.import_module("numba.cuda")

# These kernels take any number of blocks, each of at most this many threads.
WALKING = frozenset({"encode", "encode_pieces", "decode", "decode_pieces"})
_MOST_THREADS = 1024

# A multiprocessor has 65536 registers; the simulator has none.
_kernel = cuda.jit
if not importlib.import_module("numba").config.ENABLE_CUDASIM:
    _kernel = cuda.jit(max_registers=65536 // _MOST_THREADS)

_NAN = np.int32(0x7FC00000)
_UPPER_HALF = np.int64(32)

_device = cuda.jit(device=True)
_stride_of = _device(stride_of)
_least, _greatest = _device(least), _device(greatest)
_ordered, _scale_of, _upper_of, _code_of, _value_of = compiled_by(
    _device, _least, _greatest
)


@_device
def _lower_of(pair):  # type: ignore[no-untyped-def]
    """Return the position, in the order of floats, of the smaller of two values."""
    return _least(_ordered(np.int32(pair)), _ordered(np.int32(pair >> _UPPER_HALF)))


@_device
def _higher_of(pair):  # type: ignore[no-untyped-def]
    """Return the position, in the order of floats, of the larger of two values."""
    return _greatest(_ordered(np.int32(pair)), _ordered(np.int32(pair >> _UPPER_HALF)))


@_device
def _extremes_of(values, first, count, lows, highs):  # type: ignore[no-untyped-def]
    """Write the bits of a chunk's extremes to the first items of two shared arrays.

    The arrays have an item for each thread. ``values`` begin at a multiple of 8 bytes,
    so that two of them are read at once.
    """
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    # One thread reads the value before the first pair, another the one behind the last.
    bits = values.view(np.int32)
    end = first + count
    if thread == 0:
        low = high = _ordered(bits[first])
    if thread == threads - 1:
        place = _ordered(bits[end - 1])
        low, high = _least(low, place), _greatest(high, place)
    pairs = values[: values.size // 2 * 2].view(np.int64)
    last = end // 2
    k = (first + 1) // 2 + thread
    # Several reads are under way before the first one is needed.
    while k + 3 * threads < last:
        one, two = pairs[k], pairs[k + threads]
        three, four = pairs[k + 2 * threads], pairs[k + 3 * threads]
        low = _least(low, _least(_lower_of(one), _lower_of(two)))
        low = _least(low, _least(_lower_of(three), _lower_of(four)))
        high = _greatest(high, _greatest(_higher_of(one), _higher_of(two)))
        high = _greatest(high, _greatest(_higher_of(three), _higher_of(four)))
        k += 4 * threads
    while k < last:
        low = _least(low, _lower_of(pairs[k]))
        high = _greatest(high, _higher_of(pairs[k]))
        k += threads
    lows[thread], highs[thread] = low, high
    cuda.syncthreads()
    width = threads
    while width > 1:
        half = (width + 1) // 2
        if thread + half < width:
            lows[thread] = _least(lows[thread], lows[thread + half])
            highs[thread] = _greatest(highs[thread], highs[thread + half])
        cuda.syncthreads()
        width = half
    if thread == 0:
        lows[0], highs[0] = _ordered(lows[0]), _ordered(highs[0])
    cuda.syncthreads()


@_device
def _encode_chunk(values, first, count, out, start, lows, highs):  # type: ignore[no-untyped-def]
    """Encode a chunk, with zeros as its head; return whether all values are finite.

    The first items of the shared arrays receive the bits of the extremes.
    """
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    _extremes_of(values, first, count, lows, highs)
    largest = highs.view(np.float32)[0]
    scale = _scale_of(lows.view(np.float32)[0], largest)
    upper = _upper_of(largest, scale)
    is_finite = _ordered(lows[0]) >= SMALLEST and _ordered(highs[0]) <= LARGEST
    # The range overflows if the scale is 0.
    valid = is_finite and scale > 0 and math.isfinite(upper)
    for k in range(thread, HEAD, threads):
        out[start + k] = 0
    codes = start + HEAD
    for k in range(codes + count + thread, start + _stride_of(count), threads):
        out[k] = 0
    k = count - 1 - thread
    if not valid:
        while k >= 0:
            out[codes + k] = 0
            k -= threads
        return False
    while k >= 3 * threads:
        one, two = values[first + k], values[first + k - threads]
        three = values[first + k - 2 * threads]
        four = values[first + k - 3 * threads]
        out[codes + k] = _code_of(one, scale, upper)
        out[codes + k - threads] = _code_of(two, scale, upper)
        out[codes + k - 2 * threads] = _code_of(three, scale, upper)
        out[codes + k - 3 * threads] = _code_of(four, scale, upper)
        k -= 4 * threads
    while k >= 0:
        out[codes + k] = _code_of(values[first + k], scale, upper)
        k -= threads
    return True


@_device
def _decode_chunk(data, start, into, first, count, low, high):  # type: ignore[no-untyped-def]
    """Decode a chunk with the given extremes."""
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    scale = _scale_of(low, high)
    upper = _upper_of(high, scale)
    codes = start + HEAD
    k = thread
    while k + 3 * threads < count:
        one, two = data[codes + k], data[codes + k + threads]
        three, four = data[codes + k + 2 * threads], data[codes + k + 3 * threads]
        into[first + k] = _value_of(one, scale, upper)
        into[first + k + threads] = _value_of(two, scale, upper)
        into[first + k + 2 * threads] = _value_of(three, scale, upper)
        into[first + k + 3 * threads] = _value_of(four, scale, upper)
        k += 4 * threads
    while k < count:
        into[first + k] = _value_of(data[codes + k], scale, upper)
        k += threads


@_kernel
def encode(values, out, ranges, chunk, well):  # type: ignore[no-untyped-def]
    """Encode chunks, and write which of them are finite; ``ranges`` as on CPUs."""
    lows = cuda.shared.array(_MOST_THREADS, np.int32)
    highs = cuda.shared.array(_MOST_THREADS, np.int32)
    thread = cuda.threadIdx.x
    for number in range(cuda.blockIdx.x, well.size, cuda.gridDim.x):
        first = number * chunk
        count = _least(chunk, values.size - first)
        start = number * _stride_of(chunk)
        valid = _encode_chunk(values, first, count, out, start, lows, highs)
        if thread == 0:
            bits = ranges.view(np.int32)
            bits[2 * number] = lows[0] if valid else _NAN
            bits[2 * number + 1] = highs[0] if valid else _NAN
            if not valid:
                well[number] = 0
        # The next chunk needs the shared arrays.
        cuda.syncthreads()


@_kernel
def decode(data, into, ranges, chunk):  # type: ignore[no-untyped-def]
    """Decode chunks; ``ranges`` comes from their heads."""
    for number in range(cuda.blockIdx.x, ranges.size // 2, cuda.gridDim.x):
        first = number * chunk
        count = _least(chunk, into.size - first)
        start = number * _stride_of(chunk)
        low, high = ranges[2 * number], ranges[2 * number + 1]
        _decode_chunk(data, start, into, first, count, low, high)


@_kernel
def encode_pieces(values, out, share, stride, offset, chunk, well):  # type: ignore[no-untyped-def]
    """Encode the chunks of pieces, with their heads; arguments as on CPUs."""
    lows = cuda.shared.array(_MOST_THREADS, np.int32)
    highs = cuda.shared.array(_MOST_THREADS, np.int32)
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    per_piece = (share + chunk - 1) // chunk
    for number in range(cuda.blockIdx.x, well.size, cuda.gridDim.x):
        piece, part = number // per_piece, number % per_piece
        first = piece * share + part * chunk
        end = _least((piece + 1) * share, values.size)
        count = _least(chunk, end - first)
        if count > 0:
            start = piece * stride + offset + part * _stride_of(chunk)
            valid = _encode_chunk(values, first, count, out, start, lows, highs)
            # The head has been filled with zeros.
            cuda.syncthreads()
            # Byte by byte, because codes may begin where no number may.
            for k in range(thread, 8, threads):
                bits = lows[0] if k < 4 else highs[0]
                if not valid:
                    bits = _NAN
                out[start + k] = (bits >> np.int32(8 * (k % 4))) & np.int32(255)
            if thread == 0 and not valid:
                well[number] = 0
            # The next chunk needs the shared arrays.
            cuda.syncthreads()


@_kernel
def decode_pieces(data, into, share, stride, chunk):  # type: ignore[no-untyped-def]
    """Decode the chunks of pieces; arguments as on CPUs."""
    bits = cuda.shared.array(2, np.int32)
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    per_piece = (share + chunk - 1) // chunk
    chunks = (into.size + share - 1) // share * per_piece
    for number in range(cuda.blockIdx.x, chunks, cuda.gridDim.x):
        piece, part = number // per_piece, number % per_piece
        first = piece * share + part * chunk
        end = _least((piece + 1) * share, into.size)
        count = _least(chunk, end - first)
        if count > 0:
            start = piece * stride + part * _stride_of(chunk)
            for k in range(thread, 2, threads):
                word = np.int32(0)
                for place in range(4):
                    byte = np.int32(data[start + 4 * k + place])
                    word |= byte << np.int32(8 * place)
                bits[k] = word
            cuda.syncthreads()
            extremes = bits.view(np.float32)
            _decode_chunk(data, start, into, first, count, extremes[0], extremes[1])
            # The next chunk needs the shared array.
            cuda.syncthreads()
