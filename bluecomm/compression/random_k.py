"""The codec that keeps random values of a tensor, the same ones on all ranks."""

from __future__ import annotations

import math
import operator

import torch

from bluecomm.compression.codec import Codec
from bluecomm.compression.kernels.chunk_kernels import ChunkKernels
from bluecomm.compression.kernels.random_k import PART

# Seeds and numbers of rounds have 64 bits.
_LIMIT = 1 << 64


class RandomK(Codec):
    """Keeps ``k`` values of the tensor at positions that look random.

    The positions follow from the seed, the number of the round and the number of
    values, so ranks do not send them. Ranks with the same arguments keep the same
    values, and may add or average what they have encoded. All other values are decoded
    as 0. Multiply by ``count / k`` for an estimate without bias.

    Use another round each time: ``codec.at_round(step).encode(values, into)``.

    Format: the kept values in their own type, in the order in which the positions are
    drawn. The order of bytes is the machine's. Position i is ``P(i)``, where P permutes
    the numbers below ``4**h``, the least power of 4, at least 4, that is not below
    ``count``::

        mixed(x):  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9
                   x = (x ^ x >> 27) * 0x94d049bb133111eb
                   x ^ x >> 31                              # of SplitMix64, 64 bits
        key[j]   = mixed(mixed(mixed(seed) + round_number) + j)
        left, right = i >> h, i & (2**h - 1)
        for j in 0..5:  left, right = right, left ^ mixed(key[j] + right) & (2**h - 1)
        P(i)     = left << h | right, and P(P(i)) etc. while it is not below count

    If any value of the tensor, kept or not, is an infinity or a NaN, the kept ones are
    sent as NaN, and the whole tensor is decoded as NaN.

    The first codec of a process loads Numba and compiles the loops, which takes about
    one second. ``torch.get_num_threads()`` threads draw positions.

    Args:
        k: Number of values to keep.
        seed: From 0 to 2**64 - 1, the same on all ranks.
        round_number: From 0 to 2**64 - 1, the same on all ranks.

    Raises:
        TypeError: An argument is not a whole number.
        ValueError: ``k`` is below 1 or, when a codec is used, above the number of
            values; or another argument is out of its range.
    """

    name = "random_k"
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    devices = ("cpu", "cuda")

    def __init__(self, k: int, seed: int = 0, round_number: int = 0) -> None:
        k, seed, round_number = map(operator.index, (k, seed, round_number))
        if k < 1:
            raise ValueError(f"RandomK: k must be at least 1, got {k}")
        for name, value in (("seed", seed), ("round_number", round_number)):
            if not 0 <= value < _LIMIT:
                raise ValueError(
                    f"RandomK: {name} must be from 0 to 2**64 - 1, got {value}"
                )
        self.k = k
        self.seed = seed
        self.round_number = round_number
        # Numba takes half a second to load, which programs without codecs need not pay.
        from bluecomm.compression.kernels import random_k_cpu

        self._kernels = ChunkKernels(random_k_cpu)

    def at_round(self, number: int) -> RandomK:
        """Return the codec of another round, with the same ``k`` and seed."""
        return RandomK(self.k, self.seed, number)

    def positions(self, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return the positions that are kept of ``count`` values, on a device.

        Returns:
            Shape ``(k,)``, ``torch.int64``, no two equal, in the order of the bytes.

        Raises:
            ValueError: ``count`` is below ``k``.
        """
        self.encoded_nbytes(count, torch.float32)
        into = torch.empty(self.k, dtype=torch.int64, device=device)
        parts = -(-self.k // PART)
        self._kernels.run("draw", parts, self.seed, self.round_number, count, into)
        return into

    def encoded_nbytes(self, count: int, dtype: torch.dtype) -> int:
        """Return the number of bytes of ``k`` values.

        Raises:
            ValueError: ``count`` is below ``k``.
        """
        if count < self.k:
            raise ValueError(
                f"{self.name}: k={self.k} needs a tensor of at least {self.k} values, "
                f"got {count}; use a smaller k"
            )
        return self.k * dtype.itemsize

    def encode(self, values: torch.Tensor, into: torch.Tensor) -> bool:
        """Encode values; see ``Codec.encode``."""
        self._check("encode", values, into)
        source = values.detach()
        picked = source[self.positions(source.numel(), source.device)]
        finite = all(map(math.isfinite, torch.stack(source.aminmax()).tolist()))
        if not finite:
            picked.fill_(math.nan)
        into.copy_(picked.view(torch.uint8))
        return finite

    def decode(self, encoded: torch.Tensor, into: torch.Tensor) -> None:
        """Decode bytes; see ``Codec.decode``."""
        self._check("decode", into, encoded)
        # A copy, because the bytes may begin where no float may.
        picked = encoded.clone().view(into.dtype)
        target = into.detach()
        if picked[0].isnan():
            target.fill_(math.nan)
            return
        target.zero_()
        target[self.positions(target.numel(), target.device)] = picked
