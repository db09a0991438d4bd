"""The codec of SparseLoCo: the largest values of each chunk, in two bits each."""

from __future__ import annotations

import torch

from bluecomm.compression.chunked_top_k import ChunkedTopK
from bluecomm.compression.kernels.chunk_kernels import ChunkKernels
from bluecomm.compression.kernels.quantized_top_k import LEVELS, PER_BYTE


class QuantizedTopK(ChunkedTopK):
    """Keeps what ``ChunkedTopK`` keeps, and rounds it to four levels in each chunk.

    With the ``n`` values ``v`` that a chunk keeps::

        m     = (v[0] + ... + v[n - 1]) / n
        scale = 6 / 4 * sqrt(((v[0] - m)**2 + ... + (v[n - 1] - m)**2) / n)
        q[i]  = round((v[i] - m) / scale + 2), at least 0 and at most 3

    ``v[i]`` is decoded as the mean of all values of the chunk with the same ``q``. The
    sums are formed in float64, in ascending order of positions; halves are rounded to
    even; and if ``scale`` is 0, it is 1 instead. The levels are float32.

    The formula is that of the public implementation of SparseLoCo (arXiv 2508.15706),
    with two differences. There the mean and the deviation are those of a whole
    parameter; here they are those of a chunk, because a bucket has the parameters of
    many layers. There the squares are divided by ``n - 1``, with which two values of
    opposite signs would both become 0.

    Format: the four levels of each chunk, 0 for those without values, float32 in the
    byte order of the machine; then two bits for each value, from the lowest bits of a
    byte to the highest, in whole bytes for each chunk; then the positions, as in
    ``ChunkedTopK``. With ``k`` = 64 a chunk takes 128 bytes, 0.25 bits per value.

    A chunk with an infinity or a NaN is decoded as NaN.

    Use it with ``ErrorFeedback``. The arguments, errors and threads are those of
    ``ChunkedTopK``.
    """

    name = "quantized_top_k"

    def __init__(self, k: int = 64) -> None:
        super().__init__(k)
        # Numba takes half a second to load, which programs without codecs need not pay.
        from bluecomm.compression.kernels import quantized_top_k_cpu

        self._rounding = ChunkKernels(quantized_top_k_cpu)

    def _values_nbytes(self, count: int, dtype: torch.dtype) -> int:
        whole, last = self._shares(count)
        codes = whole * self._codes_nbytes(self.k) + self._codes_nbytes(last)
        return self._levels_nbytes(count) + codes

    def _levels_nbytes(self, count: int) -> int:
        whole, last = self._shares(count)
        return 4 * LEVELS * (whole + (last > 0))

    def _codes_nbytes(self, values: int) -> int:
        """Return the bytes of the numbers of levels of one chunk."""
        return -(-values // PER_BYTE)

    def _store(
        self, picked: torch.Tensor, dtype: torch.dtype, into: torch.Tensor
    ) -> None:
        chunks = -(-picked.numel() // self.k)
        levels = picked.new_empty(chunks * LEVELS)
        nbytes = 4 * levels.numel()
        codes = into[nbytes:]
        self._rounding.run("quantize", chunks, picked, levels, codes, self.k)
        into[:nbytes].copy_(levels.view(torch.uint8))

    def _load(
        self, stored: torch.Tensor, count: int, dtype: torch.dtype
    ) -> torch.Tensor:
        nbytes = self._levels_nbytes(count)
        # A copy, because the bytes may begin where no float may.
        levels = stored[:nbytes].clone().view(torch.float32)
        codes = stored[nbytes:]
        whole, last = self._shares(count)
        picked = levels.new_empty(whole * self.k + last)
        chunks = whole + (last > 0)
        self._rounding.run("restore", chunks, levels, codes, picked, self.k)
        return picked
