"""The codec that sends values with half of their bits."""

from __future__ import annotations

import math

import torch

from bluecomm.compression.codec import Codec
from bluecomm.compression.kernels.chunk_kernels import is_on_gpu

# Values per pass on a CPU. Their halves are still in the cache when they are checked
# and copied.
_BLOCK = 1 << 17


class HalfCast(Codec):
    """Rounds each value to float16 or bfloat16, to the nearest, half to even.

    The relative error is at most ``2**-11`` in float16 and ``2**-8`` in bfloat16, for
    values of normal size: from 6.1e-5 to 65504 in float16, and almost all of float32 in
    bfloat16. Smaller values lose bits or become 0. float64 is rounded to float32 first,
    so a value next to the middle of two halves may become the one that is farther away.

    Format: the rounded values, two bytes each, in the byte order of the machine.

    A value that is infinite, not a number, or too large for ``dtype`` is decoded as
    NaN. The other values of the tensor are not affected.

    Args:
        dtype: The type that is sent, ``torch.float16`` or ``torch.bfloat16``.

    Raises:
        ValueError: ``dtype`` is another type.
    """

    dtypes = (torch.float32, torch.float64)
    devices = ("cpu", "cuda")

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(
                "HalfCast: dtype must be torch.float16 or torch.bfloat16, got "
                f"{dtype!r}"
            )
        self.dtype = dtype
        self.name = f"half_cast_{str(dtype).removeprefix('torch.')}"

    def encoded_nbytes(self, count: int, dtype: torch.dtype) -> int:
        """Return the number of bytes that ``count`` values need: 2 each."""
        return 2 * count

    def encode(self, values: torch.Tensor, into: torch.Tensor) -> bool:
        """Encode values; see ``Codec.encode``."""
        self._check("encode", values, into)
        finite = True
        block = _block_of(values)
        for start in range(0, values.numel(), block):
            half = values.detach()[start : start + block].to(self.dtype)
            if not all(map(math.isfinite, torch.stack(half.aminmax()).tolist())):
                finite = False
                half.masked_fill_(~half.isfinite(), math.nan)
            data = half.view(torch.uint8)
            into[2 * start : 2 * start + data.numel()].copy_(data)
        return finite

    def decode(self, encoded: torch.Tensor, into: torch.Tensor) -> None:
        """Decode bytes; see ``Codec.decode``."""
        self._check("decode", into, encoded)
        block = _block_of(into)
        for start in range(0, into.numel(), block):
            part = into.detach()[start : start + block]
            data = encoded[2 * start : 2 * start + 2 * part.numel()]
            # A copy, because the bytes may begin where no float may.
            part.copy_(data.clone().view(self.dtype))


def _block_of(values: torch.Tensor) -> int:
    """Return the number of values per pass: all on a GPU, which has no such cache."""
    return max(1, values.numel()) if is_on_gpu(values) else _BLOCK
