"""Compressed allreduce: the average or sum of all ranks' tensors, sent as codes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from bluecomm.compression import Codec, Compressor, codec_of
from bluecomm.device.staging_table import staging_of
from bluecomm.device.values import values_on_host
from bluecomm.ops.autograd.nodes import is_tracked
from bluecomm.ops.coded_pieces import pieces_of
from bluecomm.ops.compressed_agreement import CompressedAgreement
from bluecomm.ops.compressed_call import CompressedCall, CompressedNames
from bluecomm.ops.forms import NONBLOCKING, Form, blocking, nonblocking
from bluecomm.ops.host_compressed_allreduce import start_on_host
from bluecomm.ops.nccl_call import limit_of, uses_nccl
from bluecomm.ops.nccl_compressed_allreduce import start_through_nccl
from bluecomm.ops.reduce_op import ReduceOp, choose
from bluecomm.ops.refusal import Operation, describe_refused, is_marked, refuse
from bluecomm.ops.tensor import as_input
from bluecomm.runtime import Communicator, Handle, current_communicator
from bluecomm.runtime.handle import DoneHandle

__all__ = ["compressed_allreduce", "compressed_allreduce_nonblocking"]

# Values of a larger tensor are exchanged in slices, so that the network carries the
# codes of one slice while others are encoded or decoded.
_SLICE = 1 << 22


def _refused(comm: Communicator, arguments: Mapping[str, Any]) -> Iterator[Operation]:
    if not comm.included:
        return
    name = comm.name_for("compressed_allreduce", arguments.get("name"))
    tensor = arguments.get("tensor")
    staging = staging_of(tensor) if isinstance(tensor, torch.Tensor) else None
    if staging is not None and uses_nccl(comm, staging):
        yield "allgather", CompressedNames.of_next(comm, "allgather", name).first, None
    else:
        yield from CompressedNames.of_next(comm, "alltoall", name).refused()


@describe_refused(_refused)
def _compressed_allreduce(
    form: Form,
    /,
    tensor: torch.Tensor,
    codec: Codec | type[Compressor],
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Return the average or sum of all ranks' tensors, sent as codes.

    If ``Q(x)`` stands for ``x`` after ``encode`` and ``decode``, the average is
    ``Q(1 / n * sum_i Q(x_i))``; every rank gets the same bits. Each rank adds the
    codes of one of ``n`` pieces, in float32, in ascending order of ranks, and sends the
    codes of its result to all. So a rank sends ``2 (n - 1) / n`` times the bytes of the
    codes. Rounding errors are lost, unless ``ErrorFeedback`` has encoded ``x`` before.
    In a group of one rank nothing is encoded.

    There is no gradient. If NCCL is in use, and the codec's kernels run on the GPUs of
    all ranks, a tensor on a GPU is encoded and added there; it must not change before
    ``wait``. Otherwise it is encoded on the host, which waits until its values are
    there. The bits are the same.

    Args:
        tensor: Tensor of any shape and of a floating-point type; both must be the same
            on all ranks. It is converted to float32. It is not modified.
        codec: Encodes the values, such as ``compression.MinMaxUInt8()``, with the same
            options on all ranks. ``Compression.fp16`` stands for ``HalfCast`` with
            ``torch.float16``.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        op: ``Average``, the default, or ``Sum``.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds after which each exchange between the ranks fails. Default:
            the configured deadline.

    Returns:
        New tensor with the shape, type and device of ``tensor``. Values that the
        codec cannot encode, such as infinities, are NaN on all ranks.

    Raises:
        TypeError: ``tensor`` is not a tensor, or ``codec`` is not a codec of float32.
        ValueError: The type is not a floating-point type, ``tensor`` requires grad,
            ``op`` is another reduction, the codec refuses a piece, or the job goes on
            without lost ranks.
        MismatchError: The ranks' codecs, reductions, shapes or types differ.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not take part in time; the text names
            them. Or the GPU has not computed ``tensor`` in time.
        BluecommError: Work that the program has started on the GPU failed.
    """
    comm = current_communicator(process_set)
    source, dtype = as_input(tensor, "compressed_allreduce", staged=True)
    codec = codec_of(codec)
    word = _check(tensor, codec, op, comm)
    divisor = comm.size if word == "average" else 1
    shape = tuple(source.shape)
    facts = f"codec {codec!r}, op {word}, shape {shape}, type {dtype}"
    for part in torch.split(source.view(-1), _SLICE):
        pieces_of(len(part), codec, comm.size)
    if comm.size == 1:
        comm.name_for("compressed_allreduce", name)
        comm.world.check_usable()
        return DoneHandle(source.clone())
    staging = staging_of(source)
    through_nccl = staging is not None and uses_nccl(comm, staging)
    if staging is not None and not through_nccl:
        with _refusing(comm, _refused(comm, {"name": name})):
            source = _on_host(comm, source, timeout_s)
    name = comm.name_for("compressed_allreduce", name)
    call = CompressedCall(
        *(comm, source, staging, codec),
        CompressedNames.of_next(
            comm, "allgather" if through_nccl else "alltoall", name
        ),
        CompressedAgreement(comm, name, facts),
        *(_SLICE, divisor, timeout_s),
    )
    if not through_nccl:
        return start_on_host(call, form)

    def on_host() -> Handle[torch.Tensor]:
        later = call.names.of_later_exchange()
        with _refusing(comm, later.refused()):
            values = _on_host(comm, source, timeout_s)
            return start_on_host(call._replace(source=values, names=later), NONBLOCKING)

    return start_through_nccl(call, on_host)


compressed_allreduce = blocking(_compressed_allreduce)
compressed_allreduce_nonblocking = nonblocking(_compressed_allreduce)


def _check(
    tensor: torch.Tensor, codec: Codec, op: ReduceOp | None, comm: Communicator
) -> str:
    """Return the word of the reduction; raise if an argument does not suit."""
    if not tensor.is_floating_point():
        raise ValueError(
            f"compressed_allreduce: cannot encode values of type {tensor.dtype}; use "
            "allreduce, or convert with .float() first"
        )
    if is_tracked(tensor):
        raise ValueError(
            "compressed_allreduce: the tensor requires grad, but no gradient passes "
            "through codes; call it with tensor.detach() or under torch.no_grad()"
        )
    if torch.float32 not in codec.dtypes:
        raise TypeError(
            f"compressed_allreduce: {codec!r} does not encode float32, in which values "
            "are added; use another codec"
        )
    word = choose("compressed_allreduce", None, op, tensor.dtype)
    if word not in ("average", "sum"):
        raise ValueError(
            f"compressed_allreduce: op must be bluecomm.Average or Sum, got {op!r}"
        )
    if comm.world.members.survives_losses:
        raise ValueError(
            "compressed_allreduce: with bfrun --on-failure continue ranks may be lost, "
            "but each piece of the values belongs to one rank; use allreduce"
        )
    comm.check_member()
    return word


def _on_host(
    comm: Communicator, source: torch.Tensor, timeout_s: float | None
) -> torch.Tensor:
    """Return values of a device on the host."""
    limit_s = limit_of(comm, "compressed_allreduce", timeout_s)
    return values_on_host(source, "compressed_allreduce", limit_s)


@contextlib.contextmanager
def _refusing(comm: Communicator, operations: Iterable[Operation]) -> Iterator[None]:
    """Refuse operations if the context raises before it has started or refused them."""
    try:
        yield
    except Exception as error:
        if not is_marked(error):
            refuse(comm, operations, error)
        raise
