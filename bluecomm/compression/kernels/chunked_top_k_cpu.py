"""The codec ``chunked_top_k`` on CPUs: finds the largest values of chunks.

The loops compare magnitudes as whole numbers, the bits of a float32 without its sign.
The bits of infinities and NaN are the largest.
"""

from __future__ import annotations

import numba
import numpy as np

from bluecomm.compression.kernels.chunked_top_k import CHUNK, MAGNITUDE, position_by
from bluecomm.compression.kernels.jit import compiled

# The values of a chunk whose positions are equal modulo this number form a group.
_GROUPS = 512

_HALF = np.int32(16)
# The upper half of the magnitude of infinities and NaN is at least this.
_INFINITY = np.int16(0x7F80)

_position = position_by(numba.njit(inline="always"))


@numba.njit(inline="always")
def _kth_largest(keys, count, k, low, high):  # type: ignore[no-untyped-def]
    """Return the k-th largest of the first ``count`` keys.

    At least ``k`` keys reach ``low``, and none exceeds ``high``. All are of one type,
    the counts too, because the compiler makes the fastest loops then.
    """
    number = keys.dtype.type
    while low < high:
        middle = number(high - (high - low) // 2)
        reaching = number(0)
        for i in range(count):
            reaching = number(reaching + number(keys[i] >= middle))
        if reaching >= k:
            low = middle
        else:
            high = number(middle - 1)
    return low


@compiled("boolean(float32[::1], float32[::1], uint8[::1], int64, int64, int64)")
def encode(values, picked, packed, k, first, end):  # type: ignore[no-untyped-def]
    """Pick values of chunks ``first`` to ``end``, and return whether all are finite.

    ``picked`` receives ``k`` values per chunk, and ``packed`` their positions. The last
    chunk has as many as it has values, if these are fewer than ``k``.
    """
    bits = values.view(np.int32)
    padded = np.empty(CHUNK, np.int32)
    peaks = np.empty(_GROUPS, np.int16)
    groups = np.empty(_GROUPS, np.int32)
    magnitudes = np.empty(CHUNK, np.int32)
    positions = np.empty(CHUNK, np.int32)
    stride = (3 * k + 1) // 2
    finite = True
    for number in range(first, end):
        start = number * CHUNK
        part = bits[start : start + CHUNK]
        wanted = min(k, part.size)
        if part.size < CHUNK:
            # Zeros at the end are never picked: each value before them goes first.
            for i in range(CHUNK):
                padded[i] = part[i] if i < part.size else 0
            part = padded
        for i in range(_GROUPS):
            peak = np.int32(0)
            for row in range(CHUNK // _GROUPS):
                peak = max(peak, np.int32(part[row * _GROUPS + i] & MAGNITUDE))
            peaks[i] = np.int16(peak >> _HALF)
        smallest, highest = peaks[0], peaks[0]
        for i in range(_GROUPS):
            smallest = min(smallest, peaks[i])
            highest = max(highest, peaks[i])
        valid = highest < _INFINITY
        finite = finite and valid
        # `wanted` groups reach this, so `wanted` values or more do.
        low = np.int16(0)
        if wanted <= _GROUPS:
            low = _kth_largest(peaks, _GROUPS, wanted, smallest, highest)
        reaching = 0
        for i in range(_GROUPS):
            groups[reaching] = i
            reaching += peaks[i] >= low
        least = np.int32(np.int32(low) << _HALF)
        near = 0
        for row in range(CHUNK // _GROUPS):
            for j in range(reaching):
                position = row * _GROUPS + groups[j]
                magnitude = np.int32(part[position] & MAGNITUDE)
                magnitudes[near] = magnitude
                positions[near] = position
                near += int(magnitude >= least)
        most = np.int32(np.int32(highest) << _HALF | np.int32(0xFFFF))
        lowest = _kth_largest(magnitudes, near, wanted, least, most)
        ties = wanted
        for j in range(near):
            ties -= magnitudes[j] > lowest
        count = 0
        for j in range(near):
            # Only if another thread has changed values since the first pass.
            if count == wanted:
                break
            tied = magnitudes[j] == lowest and ties > 0
            if tied:
                ties -= 1
            if tied or magnitudes[j] > lowest:
                i = positions[j]
                # Never ahead of j.
                positions[count] = i if valid else np.int32(count)
                picked[number * k + count] = values[start + i] if valid else np.nan
                count += 1
        at = number * stride
        for j in range(0, count, 2):
            one = positions[j]
            packed[at] = np.uint8(one & 255)
            if j + 1 == count:
                packed[at + 1] = np.uint8(one >> 8)
            else:
                two = positions[j + 1]
                packed[at + 1] = np.uint8(one >> 8 | (two & 15) << 4)
                packed[at + 2] = np.uint8(two >> 4)
            at += 3
    return finite


@compiled("boolean(float32[::1], uint8[::1], float32[::1], int64, int64, int64)")
def decode(picked, packed, into, k, first, end):  # type: ignore[no-untyped-def]
    """Decode chunks ``first`` to ``end``, and return whether positions are valid."""
    stride = (3 * k + 1) // 2
    for number in range(first, end):
        part = into[number * CHUNK : (number + 1) * CHUNK]
        if np.isnan(picked[number * k]):
            part[:] = np.nan
            continue
        part[:] = 0
        for j in range(min(k, part.size)):
            i = _position(packed, number * stride, j)
            if i >= part.size:
                return False
            part[i] = picked[number * k + j]
    return True


@compiled(
    "boolean(float32[::1], uint8[::1], float32[::1], int64, float32, int64, int64)"
)
def add(picked, packed, into, k, alpha, first, end):  # type: ignore[no-untyped-def]
    """Add ``alpha`` times what ``decode`` writes, and return as it does."""
    stride = (3 * k + 1) // 2
    for number in range(first, end):
        part = into[number * CHUNK : (number + 1) * CHUNK]
        if np.isnan(picked[number * k]):
            part[:] = np.nan
            continue
        for j in range(min(k, part.size)):
            i = _position(packed, number * stride, j)
            if i >= part.size:
                return False
            part[i] += alpha * picked[number * k + j]
    return True


@compiled(
    "boolean(float32[:, ::1], uint8[:, :], float32[::1], int64, float32, int64, int64)"
)
def add_mean(picked, packed, into, k, alpha, first, end):  # type: ignore[no-untyped-def]
    """Add ``alpha`` times the mean of what ``decode`` writes for each of the rows.

    A chunk with a NaN in any row becomes NaN. Returns as ``decode`` does.
    """
    stride = (3 * k + 1) // 2
    rows = np.float32(picked.shape[0])
    sums = np.zeros(CHUNK, np.float32)
    for number in range(first, end):
        part = into[number * CHUNK : (number + 1) * CHUNK]
        wanted = min(k, part.size)
        for row in range(picked.shape[0]):
            positions = packed[row]
            values = picked[row, number * k : number * k + wanted]
            if np.isnan(values[0]):
                sums[:] = np.nan
            for j in range(wanted):
                i = _position(positions, number * stride, j)
                if i >= part.size:
                    return False
                sums[i] += values[j]
        for i in range(part.size):
            part[i] += alpha * (sums[i] / rows)
        sums[:] = 0
    return True
