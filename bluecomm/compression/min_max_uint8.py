"""The codec of Bagua's ByteGrad: one byte per value, from the range of its chunk."""

from __future__ import annotations

import math

import torch

from bluecomm.compression.codec import Codec, Pieces
from bluecomm.compression.kernels.chunk_kernels import ChunkKernels, is_on_gpu
from bluecomm.compression.kernels.layout import stride_of

# 256 KiB of float32: the second pass over a chunk finds it in the cache.
_CHUNK = 1 << 16


class MinMaxUInt8(Codec):
    """Rounds each value to one of 256 levels between the extremes of its chunk.

    With the extremes ``low`` and ``high`` of a chunk, in float32::

        scale = 255 / (high - low + 1e-7)
        upper = round(high * scale)                     # half to even
        code  = min(round(x * scale), upper) - (upper - 255)
        x     = (code + (upper - 255)) / scale

    Levels are whole multiples of ``1 / scale``, so 0 is exact if it lies in the range,
    and the error is at most about ``(high - low) / 510``. If values are so large and
    close together that float32 cannot tell the levels apart, codes are limited to 0 to
    255, and the error is larger.

    Format: a chunk of n values has a head of 32 bytes, which begins with ``low`` and
    ``high`` in the type of the values, and n codes, filled with zeros up to a multiple
    of 32. It is the format of ``MinMaxUInt8`` in Bagua 0.9.2.

    A chunk with an infinity or a NaN is decoded as NaN, and so is one whose range or
    whose highest level float32 cannot hold, such as a single 1e30.

    The first codec of a process loads Numba and compiles the loops, which takes about
    five seconds. ``torch.get_num_threads()`` threads encode and decode.

    Args:
        chunk: Number of values in a chunk; the last one may have fewer.

    Raises:
        ValueError: ``chunk`` is below 1.
    """

    name = "min_max_uint8"
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    devices = ("cpu", "cuda")

    def __init__(self, chunk: int = _CHUNK) -> None:
        if chunk < 1:
            raise ValueError(f"MinMaxUInt8: chunk must be at least 1, got {chunk}")
        self.chunk = chunk
        # Numba takes half a second to load, which programs without codecs need not pay.
        from bluecomm.compression.kernels import min_max_cpu

        self._kernels = ChunkKernels(min_max_cpu)

    def encoded_nbytes(self, count: int, dtype: torch.dtype) -> int:
        """Return the number of bytes that ``count`` values need: 1 each, and heads."""
        whole, rest = divmod(count, self.chunk)
        return whole * stride_of(self.chunk) + (stride_of(rest) if rest else 0)

    def encode(self, values: torch.Tensor, into: torch.Tensor) -> bool:
        """Encode values; see ``Codec.encode``."""
        return bool(self.start_encode(values, into))

    def start_encode(self, values: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        """Encode values; see ``Codec.start_encode``. It waits for no GPU."""
        self._check("encode", values, into)
        chunks = -(-values.numel() // self.chunk)
        source = values.detach().float()
        ranges = values.new_empty((chunks, 2), dtype=torch.float32)
        finite = self._kernels.start_check(
            "encode", chunks, source, into, ranges.view(-1), self.chunk
        )
        heads = ranges.to(values.dtype)
        # The bits of a NaN would depend on the device.
        heads.masked_fill_(heads.isnan(), math.nan)
        self._heads(into, chunks, values.dtype).copy_(heads.view(torch.uint8))
        return finite

    def decode(self, encoded: torch.Tensor, into: torch.Tensor) -> None:
        """Decode bytes; see ``Codec.decode``."""
        self._check("decode", into, encoded)
        target = into.detach()
        values = target if into.dtype == torch.float32 else target.float()
        self._run("decode", encoded, values, into.dtype)
        if values is not target:
            target.copy_(values)

    def add(
        self, encoded: torch.Tensor, into: torch.Tensor, alpha: float = 1.0
    ) -> None:
        """Add decoded values to others; see ``Codec.add``."""
        if into.dtype != torch.float32 or is_on_gpu(into):
            # A GPU would round a product and its sum once, unlike the kernel for CPUs.
            super().add(encoded, into, alpha)
            return
        self._check("add", into, encoded)
        self._run("add", encoded, into.detach(), into.dtype, alpha)

    def encode_pieces(
        self, values: torch.Tensor, into: torch.Tensor, layout: Pieces
    ) -> bool:
        """Encode pieces in one call; see ``Codec.encode_pieces``."""
        if not self._takes_pieces(values, layout):
            return super().encode_pieces(values, into, layout)
        share, stride, offset = layout
        count = -(-values.numel() // share)
        return self._kernels.check(
            "encode_pieces",
            count,
            values.detach(),
            into,
            share,
            stride,
            offset,
            self.chunk,
        )

    def decode_pieces(
        self, encoded: torch.Tensor, into: torch.Tensor, layout: Pieces
    ) -> None:
        """Decode pieces in one call; see ``Codec.decode_pieces``."""
        if layout.offset or not self._takes_pieces(into, layout):
            super().decode_pieces(encoded, into, layout)
            return
        share, stride, _ = layout
        count = -(-into.numel() // share)
        self._kernels.run(
            "decode_pieces", count, encoded, into.detach(), share, stride, self.chunk
        )

    def combine(
        self,
        encoded: torch.Tensor,
        count: int,
        divisor: int,
        into: torch.Tensor,
        layout: Pieces,
    ) -> bool:
        """Add codes and encode the result in one call; see ``Codec.combine``."""
        if is_on_gpu(encoded):
            return super().combine(encoded, count, divisor, into, layout)
        rows = encoded.numel() // layout.stride
        return self._kernels.check(
            "combine",
            -(-count // self.chunk),
            encoded,
            into,
            rows,
            layout.stride,
            layout.offset,
            count,
            float(divisor),
            self.chunk,
        )

    def _takes_pieces(self, values: torch.Tensor, layout: Pieces) -> bool:
        """Return whether one call for all pieces is possible, and the faster way."""
        # A call shares pieces out among threads, and not their chunks.
        pieces = -(-values.numel() // layout.share)
        is_shared = layout.share <= self.chunk or torch.get_num_threads() <= pieces
        return is_shared and not is_on_gpu(values) and values.dtype == torch.float32

    def _run(
        self,
        kernel: str,
        encoded: torch.Tensor,
        into: torch.Tensor,
        dtype: torch.dtype,
        *more: float,
    ) -> None:
        """Decode chunks.

        Args:
            kernel: Name of the kernel, which decodes into float32 or adds to it.
            encoded: The bytes.
            into: The values, in float32.
            dtype: Type of the values that were encoded.
            more: Further arguments of the kernel.
        """
        chunks = -(-into.numel() // self.chunk)
        # A copy, because the bytes may begin where no float may.
        heads = self._heads(encoded, chunks, dtype).clone()
        ranges = heads.view(dtype).float().view(-1)
        self._kernels.run(kernel, chunks, encoded, into, ranges, self.chunk, *more)

    def _heads(
        self, encoded: torch.Tensor, chunks: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the extremes in the heads, as bytes; shape ``(chunks, nbytes)``."""
        size = (chunks, 2 * dtype.itemsize)
        return encoded.as_strided(size, (stride_of(self.chunk), 1))
