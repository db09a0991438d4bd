"""The codec of Streaming DiLoCo: floats of four bits, without a mantissa."""

from __future__ import annotations

import torch

from bluecomm.compression.codec import Codec
from bluecomm.compression.kernels.chunk_kernels import ChunkKernels

# Biased exponents of float32: those of the largest power of two of each type.
_HIGHEST = {torch.float32: 254, torch.bfloat16: 254, torch.float16: 142}


class E3M0(Codec):
    """Rounds each value to zero or to one of seven powers of two, with a sign.

    With the largest magnitude ``m`` of a chunk, and ``near`` for the nearest power of
    two, the larger one if there are two::

        top = near(m)
        x   = 0 if |x| < top / 128 else sign(x) * max(near(|x|), top / 64)

    So the error of a value is at most a third of it, unless its magnitude is below
    ``top / 64``. It is the 4-bit float of Streaming DiLoCo (arXiv 2501.18512): a sign,
    3 bits of exponent and no mantissa. The scale of each chunk is our own.

    ``top`` is at least 2**-119, and at most the largest power of two of the type.

    Format: for each chunk a byte, the exponent of ``top`` plus 127; then four bits for
    each value, the first of two in the lower half of a byte. The highest of the four
    bits is the sign, the others are 0 for zero, or 7 plus the exponent of the value
    minus that of ``top``.

    A chunk with an infinity or a NaN is decoded as NaN: its exponent is 255, and its
    other bits are 0.

    The first codec of a process loads Numba and compiles the loops, which takes about
    two seconds. ``torch.get_num_threads()`` threads encode and decode.

    Args:
        chunk: Number of values in a chunk, even; the last one may have fewer.

    Raises:
        ValueError: ``chunk`` is below 2 or odd.
    """

    name = "e3m0"
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    devices = ("cpu", "cuda")

    def __init__(self, chunk: int = 256) -> None:
        if chunk < 2 or chunk % 2:
            raise ValueError(f"E3M0: chunk must be positive and even, got {chunk}")
        self.chunk = chunk
        # Numba takes half a second to load, which programs without codecs need not pay.
        from bluecomm.compression.kernels import e3m0_cpu

        self._kernels = ChunkKernels(e3m0_cpu)

    def encoded_nbytes(self, count: int, dtype: torch.dtype) -> int:
        """Return the number of bytes: a half for each value, one for each chunk."""
        return self._chunks(count) + (count + 1) // 2

    def encode(self, values: torch.Tensor, into: torch.Tensor) -> bool:
        """Encode values; see ``Codec.encode``."""
        return bool(self.start_encode(values, into))

    def start_encode(self, values: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        """Encode values; see ``Codec.start_encode``. It waits for no GPU."""
        self._check("encode", values, into)
        source = values.detach().float()
        chunks = self._chunks(values.numel())
        tops, codes = into[:chunks], into[chunks:]
        highest = _HIGHEST[values.dtype]
        return self._kernels.start_check(
            "encode", chunks, source, tops, codes, self.chunk, highest
        )

    def decode(self, encoded: torch.Tensor, into: torch.Tensor) -> None:
        """Decode bytes; see ``Codec.decode``."""
        self._check("decode", into, encoded)
        chunks = self._chunks(into.numel())
        tops, codes = encoded[:chunks], encoded[chunks:]
        target = into.detach()
        values = target if into.dtype == torch.float32 else target.float()
        self._kernels.run("decode", chunks, tops, codes, values, self.chunk)
        if values is not target:
            target.copy_(values)

    def _chunks(self, count: int) -> int:
        return -(-count // self.chunk)
