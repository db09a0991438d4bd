"""The weighted sum of tensors of 16-bit floats, in one pass over their memory.

A thread reads two words of four values of a tensor before it needs the first one, so
that many reads are under way. docs/notes/nccl-backend.md has what is known about the
machine code.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from bluecomm.ops.kernels.half_sum import CHUNK, WORD

# Without types. A simulator may stand for it.
cuda: Any = importlib.import_module("numba.cuda")

_device = cuda.jit(device=True)

# Rounded one by one: the compiler fuses the plain operators.
_times, _plus = operator.mul, operator.add
if not importlib.import_module("numba").config.ENABLE_CUDASIM:
    _libdevice: Any = importlib.import_module("numba.cuda.libdevice")
    _times, _plus = _libdevice.fmul_rn, _libdevice.fadd_rn

_WORDS = CHUNK // WORD
# Values of two words.
_LANES = 2 * WORD
_HALF = np.int32(16)
_ONE = np.int32(1)
# Just below half of the last bit that is kept.
_BELOW_HALF = np.int32(0x7FFF)
_NAN = np.int16(0x7FC0)


@_device
def _from_float16(lanes, lane):  # type: ignore[no-untyped-def]
    """Return a value of an array of 16-bit numbers as a float32."""
    return np.float32(lanes.view(np.float16)[lane])


@_device
def _to_float16(lanes, lane, value):  # type: ignore[no-untyped-def]
    """Round a float32 to the nearest value, of two the one with an even last bit."""
    lanes.view(np.float16)[lane] = np.float16(value)


@_device
def _from_bfloat16(lanes, lane):  # type: ignore[no-untyped-def]
    """Do what ``_from_float16`` does."""
    return np.int32(np.int32(lanes[lane]) << _HALF).view(np.float32)


@_device
def _to_bfloat16(lanes, lane, value):  # type: ignore[no-untyped-def]
    """Do what ``_to_float16`` does."""
    bits = value.view(np.int32)
    is_odd = np.int32(np.int32(bits >> _HALF) & _ONE)
    rounded = np.int32(np.int32(bits + _BELOW_HALF) + is_odd)
    lanes[lane] = np.int16(rounded >> _HALF) if value == value else _NAN


def _adding(convert: Callable[..., Any], round_to: Callable[..., Any]) -> Any:
    """Return the kernel for a type.

    It takes the tensors as arrays of 16-bit integers:

    * ``own`` and ``result``. They may be the same memory.
    * ``received``: rows, of which each has ``stride`` numbers.
    * ``weights`` of the rows, in float32, and ``own_weight``.
    * ``words``: 8 bytes each, which are read and written as a whole. All arrays begin
      at a multiple of 8 bytes, unless it is 0. Values behind them are read one by one.

    A block works on so many words and other values as are in a chunk.
    """

    @cuda.jit
    def add(own, received, weights, own_weight, result, stride, words):  # type: ignore[no-untyped-def]
        loaded = cuda.local.array(2, np.int64)
        totals = cuda.local.array(_LANES, np.float32)
        lanes = loaded.view(np.int16)
        block, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
        weight = np.float32(own_weight)
        own_words = own[: WORD * words].view(np.int64)
        result_words = result[: WORD * words].view(np.int64)
        received_words = received.view(np.int64)
        end = (block + 1) * _WORDS
        end = end if end < words else words
        for i in range(block * _WORDS + thread, end, 2 * threads):
            # The last one may be added twice.
            k = i + threads if i + threads < end else i
            loaded[0], loaded[1] = own_words[i], own_words[k]
            for lane in range(_LANES):
                totals[lane] = _times(convert(lanes, lane), weight)
            for row in range(weights.size):
                start = row * (stride // WORD)
                loaded[0] = received_words[start + i]
                loaded[1] = received_words[start + k]
                for lane in range(_LANES):
                    product = _times(convert(lanes, lane), weights[row])
                    totals[lane] = _plus(totals[lane], product)
            for lane in range(_LANES):
                round_to(lanes, lane, totals[lane])
            result_words[i], result_words[k] = loaded[0], loaded[1]
        first = WORD * words + block * CHUNK
        end = first + CHUNK if first + CHUNK < own.size else own.size
        for i in range(first + thread, end, threads):
            total = _times(convert(own, i), weight)
            for row in range(weights.size):
                product = _times(convert(received, row * stride + i), weights[row])
                total = _plus(total, product)
            round_to(result, i, total)

    return add


add_float16 = _adding(_from_float16, _to_float16)
add_bfloat16 = _adding(_from_bfloat16, _to_bfloat16)
