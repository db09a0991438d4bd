"""The codec of SparseLoCo: the largest values of each chunk, with short positions."""

from __future__ import annotations

import torch

from bluecomm.compression.codec import Codec
from bluecomm.compression.kernels.chunk_kernels import ChunkKernels, is_on_gpu
from bluecomm.compression.kernels.chunked_top_k import CHUNK, packed_nbytes


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
    devices = ("cpu", "cuda")

    def __init__(self, k: int = 64) -> None:
        if not 1 <= k <= CHUNK:
            raise ValueError(
                f"{type(self).__name__}: k must be from 1 to {CHUNK}, the size of a "
                f"chunk, got {k}"
            )
        self.k = k
        # Numba takes half a second to load, which programs without codecs need not pay.
        from bluecomm.compression.kernels import chunked_top_k_cpu

        self._kernels = ChunkKernels(chunked_top_k_cpu)

    def encoded_nbytes(self, count: int, dtype: torch.dtype) -> int:
        """Return the number of bytes for the values that are kept, and positions."""
        whole, last = self._shares(count)
        positions = whole * packed_nbytes(self.k) + packed_nbytes(last)
        return self._values_nbytes(count, dtype) + positions

    def encode(self, values: torch.Tensor, into: torch.Tensor) -> bool:
        """Encode values; see ``Codec.encode``."""
        return bool(self.start_encode(values, into))

    def start_encode(self, values: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        """Encode values; see ``Codec.start_encode``. It waits for no GPU."""
        self._check("encode", values, into)
        count = values.numel()
        source = values.detach().float()
        whole, last = self._shares(count)
        picked = source.new_empty(whole * self.k + last)
        nbytes = self._values_nbytes(count, values.dtype)
        chunks = -(-count // CHUNK)
        finite = self._kernels.start_check(
            "encode", chunks, source, picked, into[nbytes:], self.k
        )
        self._store(picked, values.dtype, into[:nbytes])
        return finite

    def decode(self, encoded: torch.Tensor, into: torch.Tensor) -> None:
        """Decode bytes; see ``Codec.decode``."""
        self._check_positions("decode", into, self._start_decode(encoded, into))

    def start_decode(self, encoded: torch.Tensor, into: torch.Tensor) -> None:
        """Decode bytes; see ``Codec.start_decode``. It waits for no GPU."""
        well = self._start_decode(encoded, into)
        if not is_on_gpu(into):
            self._check_positions("decode", into, well)

    def _start_decode(self, encoded: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        """Decode bytes, and return whether no position is beyond the end."""
        self._check("decode", into, encoded)
        target = into.detach()
        values = target if into.dtype == torch.float32 else target.float()
        well = self._unpack("decode", encoded, values, into.dtype)
        if values is not target:
            target.copy_(values)
        return well

    def add(
        self, encoded: torch.Tensor, into: torch.Tensor, alpha: float = 1.0
    ) -> None:
        """Add to the values that have been sent only; see ``Codec.add``."""
        if into.dtype != torch.float32 or is_on_gpu(into):
            # A GPU would round a product and its sum once, unlike the kernel for CPUs.
            super().add(encoded, into, alpha)
            return
        self._check("add", into, encoded)
        well = self._unpack("add", encoded, into.detach(), into.dtype, alpha)
        self._check_positions("add", into, well)

    def add_mean(
        self, encoded: torch.Tensor, into: torch.Tensor, alpha: float = 1.0
    ) -> None:
        """Add to each chunk what all codes have sent of it; see ``Codec.add_mean``."""
        if into.dtype != torch.float32 or is_on_gpu(into):
            super().add_mean(encoded, into, alpha)
            return
        for one in encoded:
            self._check("add_mean", into, one)
        count = into.numel()
        nbytes = self._values_nbytes(count, into.dtype)
        picked = [self._load(one[:nbytes], count, into.dtype) for one in encoded]
        well = self._run_unpacking(
            "add_mean", torch.stack(picked), encoded[:, nbytes:], into.detach(), alpha
        )
        self._check_positions("add_mean", into, well)

    def _unpack(
        self,
        operation: str,
        encoded: torch.Tensor,
        values: torch.Tensor,
        dtype: torch.dtype,
        *more: float,
    ) -> torch.Tensor:
        """Run a kernel on what was sent, and on float32 values.

        Args:
            operation: Name of the kernel.
            encoded: The bytes.
            values: The values; shape ``(count,)``.
            dtype: The type that was encoded.
            more: Further arguments of the kernel.

        Returns:
            Whether no position is beyond the end, as ``ChunkKernels.start_check`` does.
        """
        nbytes = self._values_nbytes(values.numel(), dtype)
        picked = self._load(encoded[:nbytes], values.numel(), dtype)
        return self._run_unpacking(operation, picked, encoded[nbytes:], values, *more)

    def _run_unpacking(
        self,
        operation: str,
        picked: torch.Tensor,
        packed: torch.Tensor,
        values: torch.Tensor,
        *more: float,
    ) -> torch.Tensor:
        """Run a kernel on values and positions that were sent; see ``_unpack``."""
        chunks = -(-values.numel() // CHUNK)
        return self._kernels.start_check(
            operation, chunks, picked, packed, values, self.k, *more
        )

    def _check_positions(
        self, operation: str, values: torch.Tensor, well: torch.Tensor
    ) -> None:
        """Raise if a position was beyond the end."""
        if not well:
            raise ValueError(
                f"{self.name}.{operation} got a position beyond the end of the last "
                f"chunk of {values.numel()} values; pass what encode with "
                f"k={self.k} has written for as many values"
            )

    def _shares(self, count: int) -> tuple[int, int]:
        """Return the number of whole chunks, and how many values the last one sends."""
        whole, rest = divmod(count, CHUNK)
        return whole, min(rest, self.k)

    def _values_nbytes(self, count: int, dtype: torch.dtype) -> int:
        """Return the bytes of the values that are sent, without positions."""
        whole, last = self._shares(count)
        return (whole * self.k + last) * dtype.itemsize

    def _store(
        self, picked: torch.Tensor, dtype: torch.dtype, into: torch.Tensor
    ) -> None:
        """Write the values that are sent.

        Args:
            picked: The values, float32, in the order of the chunks.
            dtype: The type that is encoded.
            into: Where the bytes go.
        """
        into.copy_(picked.to(dtype).view(torch.uint8))

    def _load(
        self, stored: torch.Tensor, count: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return what ``_store`` has written for a tensor of ``count`` values."""
        # A copy, because the bytes may begin where no float may.
        return stored.clone().view(dtype).float()
