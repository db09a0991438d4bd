"""The codec that keeps the largest values of a tensor."""

from __future__ import annotations

import math

import torch

from bluecomm.compression.codec import Codec
from bluecomm.compression.kernels.threads import share_out

# Positions have 32 bits.
_MAX_COUNT = 1 << 32
# A thread has at least as many values: its tables of counts take as long as these.
_PART = 1 << 18


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

    def __init__(self, k: int) -> None:
        if k < 1:
            raise ValueError(f"TopK: k must be at least 1, got {k}")
        self.k = k
        # Numba takes half a second to load, which programs without codecs need not pay.
        from bluecomm.compression.kernels import top_k_cpu

        self._kernels = top_k_cpu

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
        picked = torch.empty(self.k, dtype=torch.float32)
        positions = torch.empty(self.k, dtype=torch.uint32)
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
        positions = encoded[nbytes:].clone().view(torch.uint32).long()
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
        kernels, source, count = self._kernels, values.numpy(), values.numel()
        parts = min(torch.get_num_threads(), -(-count // _PART))
        ends = [count * part // parts for part in range(parts + 1)]

        uppers = torch.zeros(parts, kernels.UPPER, dtype=torch.int64)

        def count_upper(first: int, end: int) -> None:
            for part in range(first, end):
                kernels.count_upper(
                    source, ends[part], ends[part + 1], uppers[part].numpy()
                )

        share_out(parts, count_upper)
        if uppers[:, kernels.INFINITY :].any():
            return False
        upper, above = _bin_of_largest(uppers.sum(0), self.k)

        lowers = torch.zeros(parts, kernels.LOWER, dtype=torch.int64)

        def count_lower(first: int, end: int) -> None:
            for part in range(first, end):
                kernels.count_lower(
                    source, ends[part], ends[part + 1], upper, lowers[part].numpy()
                )

        share_out(parts, count_lower)
        lower, tied_above = _bin_of_largest(lowers.sum(0), self.k - above)

        # Each part picks its values above the bound; ties go to the first parts.
        ties, equal = [], lowers[:, lower].tolist()
        left = self.k - above - tied_above
        for one in equal:
            ties.append(min(one, left))
            left -= ties[-1]
        larger = uppers[:, upper + 1 :].sum(1) + lowers[:, lower + 1 :].sum(1)
        starts = [0]
        for one, tied in zip(larger.tolist(), ties, strict=True):
            starts.append(starts[-1] + one + tied)

        def pick(first: int, end: int) -> None:
            for part in range(first, end):
                own = slice(starts[part], starts[part + 1])
                kernels.pick(
                    *(
                        source,
                        ends[part],
                        ends[part + 1],
                        upper << 16 | lower,
                        ties[part],
                    ),
                    *(into[own].numpy(), positions[own].numpy()),
                )

        share_out(parts, pick)
        return True


def _bin_of_largest(counts: torch.Tensor, k: int) -> tuple[int, int]:
    """Return the bin of the k-th largest value, and how many lie in higher bins."""
    reaching = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(reaching, k))
    found = counts.numel() - 1 - place
    return found, int(reaching[place] - counts[found])
