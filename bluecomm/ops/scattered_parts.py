"""The parts of a scatter as bytes, with their types and shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.staging import Staging
from bluecomm.ops.tensor import dtype_of_word, new_output

# A part is its head, padded to this alignment, and the values. The head is its own
# length in 4 bytes, then the words of type and shape, such as "float32 3 4".
_ALIGNMENT = 64


class RootParts(NamedTuple):
    """The parts of the root, one for each member.

    Attributes:
        tensors: Contiguous tensors.
        dtypes: The engine's names of their types.
        staging: Staging of the device that has them; ``None`` if the host does.
    """

    tensors: Sequence[torch.Tensor]
    dtypes: Sequence[str]
    staging: Staging | None

    @property
    def are_on_gpu(self) -> bool:
        """Whether NCCL can move them."""
        return isinstance(self.staging, CudaStaging)


def words_of(tensor: torch.Tensor, dtype: str) -> str:
    """Return the words of type and shape of a tensor."""
    return " ".join([dtype, *map(str, tensor.shape)])


def type_and_shape(words: str) -> tuple[torch.dtype, tuple[int, ...]]:
    """Return the type and shape that ``words_of`` has put into words."""
    dtype, *sizes = words.split()
    return dtype_of_word(dtype), tuple(map(int, sizes))


def pack(parts: RootParts) -> tuple[torch.Tensor, list[int]]:
    """Return all parts one after another, on their device, and the bytes of each."""
    staging = parts.staging
    texts, lengths = [], []
    for tensor, dtype in zip(parts.tensors, parts.dtypes, strict=True):
        words = words_of(tensor, dtype).encode()
        text = len(words).to_bytes(4, "little") + words
        texts.append(text.ljust(_aligned(len(text)), b"\0"))
        lengths.append(len(texts[-1]) + _aligned(tensor.nbytes))
    joined = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)
    if staging is None:
        packed = new_output(torch.empty(sum(lengths), dtype=torch.uint8))
    else:
        packed = staging.empty((sum(lengths),), torch.uint8)
        on_host = staging.empty_on_host(joined.shape, joined.dtype)
        joined = staging.to_device(on_host.copy_(joined))
    heads = torch.split(joined, [len(text) for text in texts])
    start = 0
    for tensor, head, length in zip(parts.tensors, heads, lengths, strict=True):
        body = start + len(head)
        packed[start:body] = head
        if tensor.nbytes:
            # A contiguous tensor of one element may have any stride.
            values = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
            packed[body : body + tensor.nbytes] = values
        start += length
    return packed, lengths


def unpack(part: torch.Tensor) -> torch.Tensor:
    """Return the tensor of one part, which is on the host."""
    length = int.from_bytes(bytes(part[:4].tolist()), "little")
    dtype, shape = type_and_shape(bytes(part[4 : 4 + length].tolist()).decode())
    begin = _aligned(4 + length)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    return part[begin : begin + nbytes].view(dtype).view(shape)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
