"""Scatter: one rank gives each rank a tensor of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.outputs import check_out_like
from bluecomm.ops.roots import member_of
from bluecomm.ops.tensor import as_input, dtype_of_word, new_output, span
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.call import NO_MEMORY, Call

__all__ = ["scatter", "scatter_nonblocking"]

# A part is its head, padded to this alignment, and the values. The head is its own
# length in 4 bytes, then the words of type and shape, such as "float32 3 4".
_ALIGNMENT = 64


def _scatter(
    form: Form,
    /,
    tensors: Sequence[torch.Tensor] | None,
    root_rank: int,
    name: str | None = None,
    process_set: Communicator | None = None,
    *,
    out: torch.Tensor | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Return the tensor that rank ``root_rank`` has for this rank.

    The other ranks need not know types or shapes, which the root sends along. No
    gradient passes: each rank gets the values.

    Args:
        tensors: On the root a tensor for each rank, in order; their types and shapes
            may differ. ``None`` on the other ranks.
        root_rank: Rank that has the tensors. It must be the same on all ranks.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        out: Dense tensor for the result. Default: new memory.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New tensor, or ``out``.

    Raises:
        TypeError: One of ``tensors`` is not a tensor, or its type is not supported.
        ValueError: ``root_rank`` is not a member of the process set, or ``tensors`` are
            not one for each member on the root, or not ``None`` on another rank; or
            ``out`` has not the type and shape of the result, which this rank loses.
        MismatchError: The ranks called the operation with different arguments.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    comm = current_communicator(process_set)
    root = member_of("scatter", "root_rank", root_rank, comm)
    packed = torch.empty(0, dtype=torch.uint8)
    lengths: list[int] = []
    if comm.rank == root:
        parts = _checked(tensors, comm)
        packed, lengths = _pack(parts)
        own = parts[comm.rank][0] if out is not None else parts[comm.rank][0].clone()
    elif tensors is not None:
        raise ValueError(
            f"scatter: only the root, rank {root_rank}, passes tensors; pass None on "
            f"rank {comm.world.rank}"
        )

    def finish(number: int) -> torch.Tensor:
        if comm.rank == root:
            value = own
        else:
            block, rows = comm.world.output(number)
            value = _unpack(torch.frombuffer(block, dtype=torch.uint8, count=sum(rows)))
        return value if out is None else _copied(value, out)

    call: Call[torch.Tensor] = Call(
        "scatter", "uint8", packed.shape, span(packed), NO_MEMORY, (packed,), finish
    )
    call.name = name
    call.timeout_s = timeout_s
    call.parameters = parameters(root=root, splits=tuple(lengths))
    call.blocking = form.blocking
    return comm.start(call)


scatter = blocking(_scatter)
scatter_nonblocking = nonblocking(_scatter)


def _checked(
    tensors: Sequence[torch.Tensor] | None, comm: Communicator
) -> list[tuple[torch.Tensor, str]]:
    if tensors is None or len(tensors) != comm.size:
        got = "None" if tensors is None else len(tensors)
        raise ValueError(
            f"scatter: expected a tensor for each of {comm.size} ranks on the root, "
            f"got {got}"
        )
    return [as_input(tensor, "scatter") for tensor in tensors]


def _copied(value: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    check_out_like("scatter", value, out)
    with torch.no_grad():
        return out.copy_(value)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _pack(
    parts: Sequence[tuple[torch.Tensor, str]],
) -> tuple[torch.Tensor, list[int]]:
    """Return all parts one after another, and their lengths in bytes."""
    pieces, lengths = [], []
    for tensor, word in parts:
        words = " ".join([word, *map(str, tensor.shape)]).encode()
        text = len(words).to_bytes(4, "little") + words
        head = text.ljust(_aligned(len(text)), b"\0")
        pieces.append((head, tensor))
        lengths.append(len(head) + _aligned(tensor.nbytes))
    packed = new_output(torch.empty(sum(lengths), dtype=torch.uint8))
    start = 0
    for (head, tensor), length in zip(pieces, lengths, strict=True):
        body = start + len(head)
        packed[start:body] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        if tensor.nbytes:
            values = tensor.reshape(-1).view(torch.uint8)
            packed[body : body + tensor.nbytes] = values
        start += length
    return packed, lengths


def _unpack(part: torch.Tensor) -> torch.Tensor:
    length = int.from_bytes(bytes(part[:4].tolist()), "little")
    word, *sizes = bytes(part[4 : 4 + length].tolist()).decode().split()
    shape = tuple(map(int, sizes))
    dtype = dtype_of_word(word)
    begin = _aligned(4 + length)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    return part[begin : begin + nbytes].view(dtype).view(shape)
