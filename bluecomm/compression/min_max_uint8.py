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
        source = _readable_in_pairs(values.detach().float())
        if values.dtype == torch.float32:
            return self._start_pieces(source, into, _as_one_piece(source))
        chunks = -(-values.numel() // self.chunk)
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
        if into.dtype == torch.float32:
            self.decode_pieces(encoded, target, _as_one_piece(into))
            return
        values = target.float()
        self._run("decode", encoded, values, into.dtype)
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

    def start_encode_pieces(
        self, values: torch.Tensor, into: torch.Tensor, layout: Pieces
    ) -> torch.Tensor:
        """Encode pieces in one call; see ``Codec.start_encode_pieces``."""
        if values.dtype != torch.float32:
            return super().start_encode_pieces(values, into, layout)
        return self._start_pieces(_readable_in_pairs(values.detach()), into, layout)

    def decode_pieces(
        self, encoded: torch.Tensor, into: torch.Tensor, layout: Pieces
    ) -> None:
        """Decode pieces in one call; see ``Codec.decode_pieces``."""
        if layout.offset or into.dtype != torch.float32:
            super().decode_pieces(encoded, into, layout)
            return
        share, stride, _ = layout
        self._kernels.run(
            *("decode_pieces", self._chunks_in(into, share), encoded, into.detach()),
            *(share, stride, self.chunk),
        )

    def _start_pieces(
        self, values: torch.Tensor, into: torch.Tensor, layout: Pieces
    ) -> torch.Tensor:
        """Encode pieces of float32 in one call; see ``start_encode``."""
        share, stride, offset = layout
        return self._kernels.start_check(
            *("encode_pieces", self._chunks_in(values, share), values, into),
            *(share, stride, offset, self.chunk),
        )

    def _chunks_in(self, values: torch.Tensor, share: int) -> int:
        """Return the number of chunks, as if all pieces were as long as the first."""
        return -(-values.numel() // max(1, share)) * -(-share // self.chunk)

    def start_combine(
        self,
        encoded: torch.Tensor,
        count: int,
        divisor: int,
        into: torch.Tensor,
        layout: Pieces,
    ) -> torch.Tensor:
        """Add codes and encode the result in one call; see ``Codec.combine``."""
        if is_on_gpu(encoded):
            return super().start_combine(encoded, count, divisor, into, layout)
        rows = encoded.numel() // layout.stride
        return self._kernels.start_check(
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


def _readable_in_pairs(values: torch.Tensor) -> torch.Tensor:
    """Return float32 values of which a GPU can read two at once."""
    if is_on_gpu(values) and values.data_ptr() % 8:
        return values.clone()
    return values


def _as_one_piece(values: torch.Tensor) -> Pieces:
    return Pieces(max(1, values.numel()), 0)
