"""The codec that sends one bit for each value, and a scale for each chunk."""

from __future__ import annotations

import torch

from bluecomm.compression.codec import Codec
from bluecomm.compression.kernels.chunk_kernels import ChunkKernels


class ScaledSign(Codec):
    """Sends the signs of values, and the mean magnitude of each chunk.

    A value x of a chunk of n values is decoded as::

        scale = (|x[0]| + ... + |x[n - 1]|) / n
        x     = -scale if x < 0 else scale          # also where x is 0 or -0

    It is the compressor of EF-signSGD (arXiv 1901.09847), for each chunk instead of
    each tensor. Use it with ``ErrorFeedback``: alone it need not converge.

    The sum is formed in float64, from 16 sums in ascending order: value i of the chunk
    belongs to sum i modulo 16. The scale is float32.

    Format: the scales of all chunks, four bytes each in the byte order of the machine;
    then a bit for each value, 1 if it is below 0, from the lowest bit of a byte to the
    highest, filled up with zeros.

    A chunk with an infinity or a NaN is decoded as NaN: its scale is NaN, and its bits
    are 0.

    The first codec of a process loads Numba and compiles the loops, which takes about
    two seconds. ``torch.get_num_threads()`` threads encode and decode.

    Args:
        chunk: Number of values in a chunk, a multiple of 8; the last one may have
            fewer.

    Raises:
        ValueError: ``chunk`` is below 8 or no multiple of 8.
    """

    name = "scaled_sign"
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    devices = ("cpu", "cuda")

    def __init__(self, chunk: int = 4096) -> None:
        if chunk < 8 or chunk % 8:
            raise ValueError(
                f"ScaledSign: chunk must be a positive multiple of 8, got {chunk}"
            )
        self.chunk = chunk
        # Numba takes half a second to load, which programs without codecs need not pay.
        from bluecomm.compression.kernels import scaled_sign_cpu

        self._kernels = ChunkKernels(scaled_sign_cpu)

    def encoded_nbytes(self, count: int, dtype: torch.dtype) -> int:
        """Return the number of bytes of the scales and of a bit for each value."""
        return 4 * self._chunks(count) + (count + 7) // 8

    def encode(self, values: torch.Tensor, into: torch.Tensor) -> bool:
        """Encode values; see ``Codec.encode``."""
        return bool(self.start_encode(values, into))

    def start_encode(self, values: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        """Encode values; see ``Codec.start_encode``. It waits for no GPU."""
        self._check("encode", values, into)
        source = values.detach().float()
        chunks = self._chunks(values.numel())
        scales = values.new_empty(chunks, dtype=torch.float32)
        signs = into[4 * chunks :]
        finite = self._kernels.start_check(
            "encode", chunks, source, scales, signs, self.chunk
        )
        into[: 4 * chunks].copy_(scales.view(torch.uint8))
        return finite

    def decode(self, encoded: torch.Tensor, into: torch.Tensor) -> None:
        """Decode bytes; see ``Codec.decode``."""
        self._check("decode", into, encoded)
        chunks = self._chunks(into.numel())
        # A copy, because the bytes may begin where no float may.
        scales = encoded[: 4 * chunks].clone().view(torch.float32)
        signs = encoded[4 * chunks :]
        target = into.detach()
        values = target if into.dtype == torch.float32 else target.float()
        self._kernels.run("decode", chunks, scales, signs, values, self.chunk)
        if values is not target:
            target.copy_(values)

    def _chunks(self, count: int) -> int:
        return -(-count // self.chunk)
