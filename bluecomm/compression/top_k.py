"""The codec that keeps the largest values of a tensor."""

from __future__ import annotations

import math

import torch

from bluecomm.compression.codec import Codec
from bluecomm.compression.kernels.chunk_kernels import ChunkKernels, is_on_gpu
from bluecomm.compression.kernels.top_k import INFINITY, LOWER, UPPER

# Positions have 32 bits.
_MAX_COUNT = 1 << 32
# A part has at least as many values: its tables of counts take as long as these.
_PART = 1 << 18
# Number of parts on a GPU, at most. The tables of a part take 768 KiB.
_GPU_PARTS = 64


class TopK(Codec):
    """Keeps the ``k`` values of the largest magnitude in the tensor.

    All other values are decoded as 0. If magnitudes are equal, the values that come
    first are kept. The result is exact: no values are sampled.

    Format: the kept values, in their own type and in ascending order of their
    positions; then the positions as unsigned numbers of 32 bits. The order of bytes is
    the machine's.

    If the tensor has an infinity or a NaN, all of it is decoded as NaN: NaN is sent
    ``k`` times, with the positions 0, 1, 2, ...

    The first codec of a process loads Numba and compiles the loops, which takes about
    two seconds. ``torch.get_num_threads()`` threads encode.

    Args:
        k: Number of values to keep.

    Raises:
        ValueError: ``k`` is below 1 or, when a codec is used, above the number of
            values; a tensor has more than 2**32 values; or the bytes to decode have a
            position beyond the end of the tensor.
    """

    name = "top_k"
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    devices = ("cpu", "cuda")

    def __init__(self, k: int) -> None:
        if k < 1:
            raise ValueError(f"TopK: k must be at least 1, got {k}")
        self.k = k
        # Numba takes half a second to load, which programs without codecs need not pay.
        from bluecomm.compression.kernels import top_k_cpu

        self._kernels = ChunkKernels(top_k_cpu)

    def encoded_nbytes(self, count: int, dtype: torch.dtype) -> int:
        """Return the number of bytes of ``k`` values and positions.

        Raises:
            ValueError: ``count`` is below ``k`` or above 2**32.
        """
        if not self.k <= count <= _MAX_COUNT:
            raise ValueError(
                f"{self.name}: k={self.k} needs a tensor of {self.k} to 2**32 values, "
                f"got {count}; use a smaller k or split the tensor"
            )
        return self.k * (dtype.itemsize + 4)

    def encode(self, values: torch.Tensor, into: torch.Tensor) -> bool:
        """Encode values; see ``Codec.encode``."""
        self._check("encode", values, into)
        picked = torch.empty(self.k, dtype=torch.float32, device=values.device)
        # Their bits are those of numbers without sign.
        positions = torch.empty(self.k, dtype=torch.int32, device=values.device)
        finite = self._pick(values.detach().float(), picked, positions)
        if not finite:
            picked.fill_(math.nan)
            positions.copy_(torch.arange(self.k))
        nbytes = self.k * values.dtype.itemsize
        into[:nbytes].copy_(picked.to(values.dtype).view(torch.uint8))
        into[nbytes:].copy_(positions.view(torch.uint8))
        return finite

    def decode(self, encoded: torch.Tensor, into: torch.Tensor) -> None:
        """Decode bytes; see ``Codec.decode``."""
        self._check("decode", into, encoded)
        nbytes = self.k * into.dtype.itemsize
        # Copies, because the bytes may begin where no number may.
        picked = encoded[:nbytes].clone().view(into.dtype)
        positions = encoded[nbytes:].clone().view(torch.int32).long()
        positions &= _MAX_COUNT - 1
        target = into.detach()
        if picked[0].isnan():
            target.fill_(math.nan)
            return
        highest = int(positions.max())
        if highest >= target.numel():
            raise ValueError(
                f"{self.name}.decode got position {highest} for a tensor of "
                f"{target.numel()} values; pass what encode with k={self.k} has "
                "written for as many values"
            )
        target.zero_()
        target[positions] = picked

    def _pick(
        self, values: torch.Tensor, into: torch.Tensor, positions: torch.Tensor
    ) -> bool:
        """Find the largest values in three passes; return whether all are finite."""
        count, kernels = values.numel(), self._kernels
        most = _GPU_PARTS if is_on_gpu(values) else torch.get_num_threads()
        parts = min(most, -(-count // _PART))
        ends = torch.tensor(
            [count * part // parts for part in range(parts + 1)], device=values.device
        )

        uppers = ends.new_zeros(parts, UPPER)
        kernels.run("count_upper", parts, values, ends, uppers)
        if uppers[:, INFINITY:].any():
            return False
        upper, above = _bin_of_largest(uppers.sum(0), self.k)

        lowers = ends.new_zeros(parts, LOWER)
        kernels.run("count_lower", parts, values, ends, upper, lowers)
        lower, tied_above = _bin_of_largest(lowers.sum(0), self.k - above)

        # Each part picks its values above the bound; ties go to the first parts.
        equal = lowers[:, lower]
        left = self.k - above - tied_above - (equal.cumsum(0) - equal)
        ties = torch.minimum(equal, left.clamp(min=0))
        larger = uppers[:, upper + 1 :].sum(1) + lowers[:, lower + 1 :].sum(1)
        starts = torch.zeros_like(ends)
        torch.cumsum(larger + ties, 0, out=starts[1:])
        bound = upper << 16 | lower
        kernels.run("pick", parts, values, ends, bound, ties, starts, into, positions)
        return True


def _bin_of_largest(counts: torch.Tensor, k: int) -> tuple[int, int]:
    """Return the bin of the k-th largest value, and how many lie in higher bins."""
    reaching = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(reaching, k))
    found = counts.numel() - 1 - place
    return found, int(reaching[place] - counts[found])
