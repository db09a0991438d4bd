"""Compressed allreduce: the average or sum of all ranks' tensors, sent as codes."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from bluecomm.compression import Codec, Compressor, codec_of
from bluecomm.device.staging import Staging
from bluecomm.device.staging_table import staging_of
from bluecomm.device.values import values_on_host
from bluecomm.errors import MismatchError
from bluecomm.ops.autograd.nodes import is_tracked
from bluecomm.ops.coded_exchange import CodedExchange
from bluecomm.ops.coded_pieces import pieces_of
from bluecomm.ops.follow_up_name import next_turn
from bluecomm.ops.forms import NONBLOCKING, Form, blocking, nonblocking
from bluecomm.ops.nccl_call import uses_nccl
from bluecomm.ops.nccl_compressed_allreduce import CompressedCall
from bluecomm.ops.reduce_op import ReduceOp, choose
from bluecomm.ops.refusal import (
    Operation,
    describe_refused,
    is_marked,
    refuse,
    told,
)
from bluecomm.ops.tensor import as_input, new_output
from bluecomm.runtime import Communicator, Handle, current_communicator
from bluecomm.runtime.chained_handle import ChainedHandle
from bluecomm.runtime.handle import DoneHandle, GroupHandle, MappedHandle

__all__ = ["compressed_allreduce", "compressed_allreduce_nonblocking"]

# Values of a larger tensor are exchanged in slices, so that the network carries the
# codes of one slice while others are encoded or decoded.
_SLICE = 1 << 22

# A head has a digest of the facts on which ranks must agree, and the facts in words, as
# far as they fit.
_HEAD_NBYTES = 256
_DIGEST_NBYTES = 16


def _refused(comm: Communicator, arguments: Mapping[str, Any]) -> Iterator[Operation]:
    if not comm.included:
        return
    name = comm.name_for("compressed_allreduce", arguments.get("name"))
    tensor = arguments.get("tensor")
    staging = staging_of(tensor) if isinstance(tensor, torch.Tensor) else None
    if staging is not None and uses_nccl(comm, staging):
        yield "allgather", _Names.of_next(comm, "allgather", name).first, None
    else:
        yield from _Names.of_next(comm, "alltoall", name).refused()


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
    if staging is None or not uses_nccl(comm, staging):
        if staging is not None:
            with _refusing(comm, _refused(comm, {"name": name})):
                source = _on_host(comm, source, timeout_s)
        name = comm.name_for("compressed_allreduce", name)
        names = _Names.of_next(comm, "alltoall", name)
        agreement = _Agreement(comm, name, facts)
        return _start_on_host(
            *(comm, source, staging, codec, names, agreement, divisor, form, timeout_s)
        )
    name = comm.name_for("compressed_allreduce", name)
    names = _Names.of_next(comm, "allgather", name)
    agreement = _Agreement(comm, name, facts)

    def on_host() -> Handle[torch.Tensor]:
        later = names.of_later_exchange()
        with _refusing(comm, later.refused()):
            values = _on_host(comm, source, timeout_s)
            return _start_on_host(
                *(comm, values, staging, codec, later, agreement, divisor),
                *(NONBLOCKING, timeout_s),
            )

    call = CompressedCall(
        *(comm, staging, source, codec, *names, _SLICE, divisor, timeout_s)
    )
    return call.start(agreement.head, agreement.check, on_host)


compressed_allreduce = blocking(_compressed_allreduce)
compressed_allreduce_nonblocking = nonblocking(_compressed_allreduce)


def _start_on_host(
    comm: Communicator,
    source: torch.Tensor,
    staging: Staging | None,
    codec: Codec,
    names: _Names,
    agreement: _Agreement,
    divisor: int,
    form: Form,
    timeout_s: float | None,
) -> Handle[torch.Tensor]:
    """Start a call whose values are on the host.

    Args:
        comm: Ranks that take part.
        source: The values.
        staging: Staging of the device to which the result goes; ``None`` if it stays on
            the host.
        codec: The codec.
        names: Names of the operations.
        agreement: Facts of the call.
        divisor: Divisor of the sum.
        form: How the operation was called.
        timeout_s: Deadline that the caller gave.
    """
    if staging is None:
        output = new_output(source)
    else:
        output = staging.empty_on_host(source.shape, source.dtype)
    slices = (torch.split(one.view(-1), _SLICE) for one in (source, output))
    parts = zip(*slices, strict=True)
    handle = _start_slices(
        comm,
        [
            _Slice(
                CodedExchange(
                    comm,
                    f"{names.rest}.{number}",
                    len(part),
                    codec,
                    0 if number else _HEAD_NBYTES,
                    first_name=None if number else names.first,
                ),
                part,
                into,
            )
            for number, (part, into) in enumerate(parts)
        ],
        agreement,
        divisor,
        form,
        timeout_s,
    )
    return MappedHandle(
        handle, lambda _: output if staging is None else staging.to_device(output)
    )


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
    limit_s = timeout_s
    if limit_s is None:
        limit_s = comm.world.config.operation_timeout_s
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


class _Names(NamedTuple):
    """Names of the operations of one call.

    The threads of a rank may go on with calls of one name in another order than those
    of other ranks. So only the first operations of calls have equal names.

    Attributes:
        first: Name of the first operation.
        rest: Prefix of the names of the others: ``number.operation`` follows, with the
            number of the slice.
    """

    first: str
    rest: str

    @classmethod
    def of_next(cls, comm: Communicator, kind: str, name: str) -> _Names:
        """Return the names of the next call.

        Args:
            comm: Ranks that take part.
            kind: The engine's name of the first operation.
            name: Name of the call.
        """
        first = f"{name}.pieces"
        return cls(first, f"{name}.slices.{next_turn(comm, kind, first)}")

    def of_later_exchange(self) -> _Names:
        """Return the names of an exchange whose first operation follows another one."""
        return self._replace(first=f"{self.rest}.0.pieces")

    def refused(self) -> Iterator[Operation]:
        """Describe the operations that a rank refuses if it starts none on the host.

        The ranks whose first half fails refuse the second one, and so must this rank:
        otherwise the ranks count different numbers of calls of its name.
        """
        yield "alltoall", self.first, None
        yield "allgather", f"{self.rest}.0.results", None


class _Agreement:
    """Compares the facts on which the ranks of one call must agree.

    Args:
        comm: Ranks that take part.
        name: Name of the call.
        facts: The facts, in words.
    """

    def __init__(self, comm: Communicator, name: str, facts: str) -> None:
        self._comm = comm
        self._name = name
        text = facts.encode()
        digest = hashlib.blake2b(text, digest_size=_DIGEST_NBYTES).digest()
        head = (digest + text)[:_HEAD_NBYTES].ljust(_HEAD_NBYTES, b"\0")
        self.head = torch.frombuffer(bytearray(head), dtype=torch.uint8)

    def check(self, heads: torch.Tensor) -> None:
        """Raise if the heads of all ranks are not equal. All ranks raise then.

        Raises:
            MismatchError: They differ.
        """
        differing = (heads != heads[0]).any(1).nonzero().flatten().tolist()
        if not differing:
            return
        ranks = self._comm.ranks[0], self._comm.ranks[differing[0]]
        raise told(
            MismatchError.describe(
                f"ranks {ranks[0]} and {ranks[1]} have made different calls",
                operation="compressed_allreduce",
                name=self._name,
                rank=self._comm.world.rank,
                peers=ranks,
                expected=_facts_in(heads[0]),
                got=_facts_in(heads[differing[0]]),
                remedy="Pass the same codec, with the same options, and op, and "
                "tensors of the same shape and type on all ranks",
            )
        )


class _Slice(NamedTuple):
    """Some of the values, and where their result goes."""

    exchange: CodedExchange
    values: torch.Tensor
    into: torch.Tensor


def _start_slices(
    comm: Communicator,
    slices: Sequence[_Slice],
    agreement: _Agreement,
    divisor: int,
    form: Form,
    timeout_s: float | None,
) -> Handle[list[int]]:
    """Start the exchange of the first slice, and those of the others if ranks agree.

    If a later slice cannot be encoded, this rank still sends its codes of the first
    one. Only once all ranks are known to agree on the number of slices can it refuse
    all that the other ranks start.
    """
    first, *others = slices
    nothing = torch.empty(0, dtype=torch.uint8)
    started: list[Handle[int]] = []
    failures: list[Exception] = []

    def start_others(heads: torch.Tensor) -> int:
        agreement.check(heads)
        for error in failures:
            left_out = [first.exchange.second_operation]
            for one in others:
                left_out += one.exchange.refused()
            refuse(comm, left_out, error)
            raise error
        for one in others:
            started.append(
                one.exchange.start(
                    nothing, lambda _: divisor, one.into, timeout_s=timeout_s
                )
            )
        return divisor

    def encode_others() -> None:
        try:
            for one in others:
                one.exchange.encode(one.values)
        except Exception as error:
            failures.append(error)

    first.exchange.encode(first.values)
    handle = first.exchange.start(
        agreement.head, start_others, first.into, form, timeout_s, encode_others
    )
    return ChainedHandle(
        handle, lambda _: GroupHandle(started), in_background=not form.blocking
    )


def _facts_in(head: torch.Tensor) -> str:
    text = bytes(head[_DIGEST_NBYTES:].tolist()).rstrip(b"\0")
    return text.decode(errors="ignore")
