"""The codec of SparseLoCo: the largest values of each chunk, with short positions."""

from __future__ import annotations

import torch

from bluecomm.compression.codec import Codec
from bluecomm.compression.kernels.threads import share_out

_CHUNK = 4096


class ChunkedTopK(Codec):
    """Keeps the ``k`` values of the largest magnitude in each chunk of 4096 values.

    All other values are decoded as 0. If magnitudes are equal, the values that come
    first are kept. The last chunk may have fewer values, and all of them are kept if
    there are no more than ``k``.

    Format: the kept values of all chunks, in their own type and in ascending order of
    their positions; then the positions within the chunk, 12 bits each. Two positions
    ``a`` and ``b`` take three bytes: ``a & 255``, ``a >> 8 | (b & 15) << 4`` and
    ``b >> 4``. If a chunk keeps an odd number of values, its last position takes two
    bytes. Values have the byte order of the machine.

    A chunk with an infinity or a NaN is decoded as NaN: its values are sent as NaN,
    with the positions 0, 1, 2, ...

    Chunks of 4096, ``k`` = 64 and 12 bits are those of SparseLoCo (arXiv 2508.15706),
    which also quantizes the values. The order of the bytes is that of this library.

    The first codec of a process loads Numba and compiles the loops, which takes about
    three seconds. ``torch.get_num_threads()`` threads encode and decode.

    Args:
        k: Number of values to keep in a chunk.

    Raises:
        ValueError: ``k`` is not in the range from 1 to 4096, or the bytes to decode
            have a position beyond the end of the last chunk.
    """

    name = "chunked_top_k"
    dtypes = (torch.float32, torch.float16, torch.bfloat16)

    def __init__(self, k: int = 64) -> None:
        if not 1 <= k <= _CHUNK:
            raise ValueError(
                f"ChunkedTopK: k must be from 1 to {_CHUNK}, the size of a chunk, got "
                f"{k}"
            )
        self.k = k
        # Numba takes half a second to load, which programs without codecs need not pay.
        from bluecomm.compression.kernels import chunked_top_k_cpu

        self._kernels = chunked_top_k_cpu

    def encoded_nbytes(self, count: int, dtype: torch.dtype) -> int:
        """Return the number of bytes for the values that are kept, and positions."""
        whole, rest = divmod(count, _CHUNK)
        last = min(rest, self.k)
        positions = whole * _packed_nbytes(self.k) + _packed_nbytes(last)
        return self._kept(count) * dtype.itemsize + positions

    def encode(self, values: torch.Tensor, into: torch.Tensor) -> bool:
        """Encode values; see ``Codec.encode``."""
        self._check("encode", values, into)
        count = values.numel()
        source = values.detach().float().numpy()
        picked = torch.empty(self._kept(count), dtype=torch.float32)
        nbytes = picked.numel() * values.dtype.itemsize
        finite = [True]

        def work(first: int, end: int) -> None:
            if not self._kernels.encode(
                source, picked.numpy(), into[nbytes:].numpy(), self.k, first, end
            ):
                finite[0] = False

        share_out(-(-count // _CHUNK), work)
        into[:nbytes].copy_(picked.to(values.dtype).view(torch.uint8))
        return finite[0]

    def decode(self, encoded: torch.Tensor, into: torch.Tensor) -> None:
        """Decode bytes; see ``Codec.decode``."""
        self._check("decode", into, encoded)
        count = into.numel()
        nbytes = self._kept(count) * into.dtype.itemsize
        # A copy, because the bytes may begin where no float may.
        picked = encoded[:nbytes].clone().view(into.dtype).float().numpy()
        packed = encoded[nbytes:].numpy()
        target = into.detach()
        values = target if into.dtype == torch.float32 else target.float()
        valid = [True]

        def work(first: int, end: int) -> None:
            if not self._kernels.decode(
                picked, packed, values.numpy(), self.k, first, end
            ):
                valid[0] = False

        share_out(-(-count // _CHUNK), work)
        if not valid[0]:
            raise ValueError(
                f"{self.name}.decode got a position beyond the end of the last chunk "
                f"of {count} values; pass what encode with k={self.k} has written for "
                "as many values"
            )
        if values is not target:
            target.copy_(values)

    def _kept(self, count: int) -> int:
        """Return how many of ``count`` values are sent."""
        whole, rest = divmod(count, _CHUNK)
        return whole * self.k + min(rest, self.k)


def _packed_nbytes(positions: int) -> int:
    """Return the bytes of the positions of one chunk."""
    return (3 * positions + 1) // 2
