"""Scatter: one rank gives each rank a tensor of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from bluecomm.device.staging import Staging, staging_of
from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.outputs import check_out_like
from bluecomm.ops.roots import member_of
from bluecomm.ops.tensor import (
    as_input,
    dtype_of_word,
    new_output,
    require_tensors,
    span,
)
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.call import NO_MEMORY, Call

if TYPE_CHECKING:
    from bluecomm._native import Gate

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

    Parts on a GPU travel through the host. The result is where ``out`` is. Without
    ``out`` the root's own result is where its part is, and those of the other ranks are
    on the CPU, because they have no tensor that names a device.

    Args:
        tensors: On the root a tensor for each rank, in order; their types and shapes
            may differ, but all are on one device. ``None`` on the other ranks.
        root_rank: Rank that has the tensors. It must be the same on all ranks.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        out: Dense tensor for the result, on the CPU or on a GPU. Default: new memory.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New tensor, or ``out``.

    Raises:
        TypeError: One of ``tensors`` is not a tensor, or its type is not supported.
        ValueError: ``root_rank`` is not a member of the process set, or ``tensors`` are
            not one for each member on the root, are on several devices, or are not
            ``None`` on another rank; or ``out`` has not the type and shape of the
            result, which this rank loses.
        MismatchError: The ranks called the operation with different arguments.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them.
    """
    comm = current_communicator(process_set)
    root = member_of("scatter", "root_rank", root_rank, comm)
    packed = torch.empty(0, dtype=torch.uint8)
    gate: Gate | None = None
    lengths: list[int] = []
    own: torch.Tensor | None = None
    if comm.rank == root:
        parts, staging = _checked(tensors, comm)
        packed, lengths = _pack(parts, staging)
        if staging is not None:
            packed, gate = staging.to_host(packed)
        if out is None:
            own = parts[comm.rank][0].clone()
    elif tensors is not None:
        raise ValueError(
            f"scatter: only the root, rank {root_rank}, passes tensors; pass None on "
            f"rank {comm.world.rank}"
        )

    def finish(number: int) -> torch.Tensor:
        if own is not None:
            return own
        if comm.rank == root:
            part = torch.split(packed, lengths)[root]
        else:
            block, rows = comm.world.output(number)
            part = torch.frombuffer(block, dtype=torch.uint8, count=sum(rows))
        value = _unpack(part)
        return value if out is None else _copied(value, out)

    call: Call[torch.Tensor] = Call(
        "scatter", "uint8", packed.shape, span(packed), NO_MEMORY, (packed,), finish
    )
    call.gate = gate
    call.name = name
    call.timeout_s = timeout_s
    call.parameters = parameters(root=root, splits=tuple(lengths))
    call.blocking = form.blocking
    return comm.start(call)


scatter = blocking(_scatter)
scatter_nonblocking = nonblocking(_scatter)


def _checked(
    tensors: Sequence[torch.Tensor] | None, comm: Communicator
) -> tuple[list[tuple[torch.Tensor, str]], Staging | None]:
    """Return the parts with the engine's types, and the staging of their device."""
    given = None if tensors is None else require_tensors("scatter", tensors)
    if given is None or len(given) != comm.size:
        got = "None" if given is None else len(given)
        raise ValueError(
            f"scatter: expected a tensor for each of {comm.size} ranks on the root, "
            f"got {got}"
        )
    parts = [as_input(tensor, "scatter", staged=True) for tensor in given]
    first = parts[0][0]
    staging = staging_of(first)
    for tensor, _ in parts:
        if staging_of(tensor) is not staging:
            raise ValueError(
                "scatter: expected all tensors on one device, got some on "
                f"{first.device} and on {tensor.device}; move them with .to() first"
            )
    return parts, staging


def _copied(value: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write a value of the host to ``out``, which may be on a device."""
    check_out_like("scatter", value, out, anywhere=True)
    staging = staging_of(out)
    if staging is None:
        with torch.no_grad():
            return out.copy_(value)
    # CUDA blocks the program while it copies memory that is not page-locked.
    values = staging.empty_on_host(value.shape, value.dtype)
    return staging.write(out, values.copy_(value))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _pack(
    parts: Sequence[tuple[torch.Tensor, str]], staging: Staging | None
) -> tuple[torch.Tensor, list[int]]:
    """Return all parts one after another, where they are, and their lengths in bytes.

    Args:
        parts: The parts, and the engine's names of their types.
        staging: Staging of the device that has them; ``None`` if the host does.
    """
    texts, lengths = [], []
    for tensor, word in parts:
        words = " ".join([word, *map(str, tensor.shape)]).encode()
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
    for (tensor, _), head, length in zip(parts, heads, lengths, strict=True):
        body = start + len(head)
        packed[start:body] = head
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
