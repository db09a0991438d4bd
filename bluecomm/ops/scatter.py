"""Scatter: one rank gives each rank a tensor of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from bluecomm.device.staging_table import staging_of
from bluecomm.device.values import values_on_host
from bluecomm.ops.forms import Form, blocking, nonblocking
from bluecomm.ops.nccl_call import limit_of, offers_nccl
from bluecomm.ops.nccl_scatter import NcclScatter
from bluecomm.ops.outputs import check_out_like, require_out, written
from bluecomm.ops.roots import member_of
from bluecomm.ops.scattered_parts import RootParts, pack, unpack
from bluecomm.ops.tensor import as_input, require_tensors, span
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.call import NO_MEMORY, Call

if TYPE_CHECKING:
    from bluecomm._native import Gate

__all__ = ["scatter", "scatter_nonblocking"]


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

    The result is where ``out`` is. Without ``out`` it is where the root's parts are: on
    the CPU, or, if NCCL is in use, on this rank's GPU. Without NCCL, parts on a GPU
    travel through the host, and only the root's own result is on its GPU.

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
        TypeError: ``out`` or one of ``tensors`` is not a tensor, or the type of one of
            them is not supported.
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
    if out is not None:
        require_out("scatter", out)
    parts: RootParts | None = None
    if comm.rank == root:
        parts = _checked(tensors, comm)
    elif tensors is not None:
        raise ValueError(
            f"scatter: only the root, rank {root_rank}, passes tensors; pass None on "
            f"rank {comm.world.rank}"
        )
    # The own part of the root, as it is now.
    own = None if parts is None or out is not None else parts.tensors[root].clone()
    call: Call[Any]
    begin: Callable[[Call[Any]], Handle[torch.Tensor]] = comm.start
    if offers_nccl(comm):
        limit_s = limit_of(comm, "scatter", timeout_s)
        host_call = None
        if parts is None or not parts.are_on_gpu:
            host_call = _host_call(comm, root, parts, own, out)
        exchange = NcclScatter(
            *(comm, root, parts, out, host_call),
            *(functools.partial(_placed, own, out, limit_s), limit_s),
        )
        call, begin = exchange.first, exchange.begin
    else:
        call = _host_call(comm, root, parts, own, out)
    call.name = name
    call.timeout_s = timeout_s
    call.blocking = form.blocking
    return begin(call)


scatter = blocking(_scatter)
scatter_nonblocking = nonblocking(_scatter)


def _checked(tensors: Sequence[torch.Tensor] | None, comm: Communicator) -> RootParts:
    """Return the parts that the root has given."""
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
                f"scatter on rank {comm.world.rank}: expected all tensors on one "
                f"device, got some on {first.device} and on {tensor.device}; move "
                "them with .to() first"
            )
    if staging is not None:
        comm.world.check_usable()  # before a forked child asks for memory
        staging.point()  # raises on a stream that captures a graph
    contiguous, dtypes = zip(*parts, strict=True)
    return RootParts(contiguous, dtypes, staging)


def _host_call(
    comm: Communicator,
    root: int,
    parts: RootParts | None,
    own: torch.Tensor | None,
    out: torch.Tensor | None,
) -> Call[torch.Tensor]:
    """Return a call whose parts travel on the host.

    Args:
        comm: Members that take part.
        root: Number of the root.
        parts: The root's parts; ``None`` on the other members.
        own: Result of the root, unless ``out`` is given.
        out: Memory for the result that the caller gave.
    """
    packed = torch.empty(0, dtype=torch.uint8)
    gate: Gate | None = None
    lengths: list[int] = []
    if parts is not None:
        packed, lengths = pack(parts)
        if parts.staging is not None:
            packed, gate = parts.staging.to_host(packed)

    def finish(number: int) -> torch.Tensor:
        if own is not None:
            return own
        if comm.rank == root:
            part = torch.split(packed, lengths)[root]
        else:
            block, rows = comm.world.output(number)
            part = torch.frombuffer(block, dtype=torch.uint8, count=sum(rows))
        value = unpack(part)
        return value if out is None else _copied(value, out)

    call: Call[torch.Tensor] = Call(
        "scatter", "uint8", packed.shape, span(packed), NO_MEMORY, (packed,), finish
    )
    call.gate = gate
    call.parameters = parameters(root=root, splits=tuple(lengths))
    return call


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


def _placed(
    own: torch.Tensor | None,
    out: torch.Tensor | None,
    limit_s: float,
    part: torch.Tensor,
) -> torch.Tensor:
    """Return the result from this rank's part on a device.

    Args:
        own: As for ``_host_call``.
        out: As for ``_host_call``.
        limit_s: Seconds for which to wait for the device, if ``out`` is on the host.
        part: The part, in the order of the current stream.
    """
    if out is None:
        return part if own is None else own
    check_out_like("scatter", part, out, anywhere=True)
    if part is out:
        written(out)
        return out
    with torch.no_grad():
        if staging_of(out) is None:
            part = values_on_host(part, "scatter", limit_s)
        return out.copy_(part)
