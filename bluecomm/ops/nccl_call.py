"""Makes the calls that go through NCCL, from tensors on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from bluecomm.device.staging import CudaStaging, Staging
from bluecomm.ops.nccl_exchange import NcclExchange
from bluecomm.ops.refusal import first_operations, refuse
from bluecomm.runtime import Communicator
from bluecomm.runtime.call import NO_MEMORY, Call
from bluecomm.runtime.communicator import check_timeout
from bluecomm.runtime.failure import PEER_LOST, failure

if TYPE_CHECKING:
    from bluecomm._native import Completion, NcclCall, NcclQueue, Parameters

# Element types that NCCL can add.
_ADDED = frozenset(
    {
        *("float16", "bfloat16", "float32", "float64"),
        *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    }
)
# Element types that neighbors combine.
_COMBINED = frozenset({"float16", "bfloat16", "float32", "float64"})


def goes_through_nccl(
    comm: Communicator,
    staging: Staging,
    kind: str,
    dtype: str,
    shape: torch.Size,
    parameters: Parameters | None,
) -> bool:
    """Return whether NCCL carries out a call; otherwise its tensor is staged.

    The answer is the same on all ranks whose calls match.

    Args:
        comm: Ranks that take part.
        staging: Staging of the tensor's device.
        kind: The engine's name of the operation.
        dtype: The engine's name of the element type.
        shape: Shape of the tensor.
        parameters: Parameters of the kind.
    """
    world = comm.world
    if (
        world.config.device_transport != "nccl"
        or not isinstance(staging, CudaStaging)
        or not comm.is_world
        or not 1 < comm.size == world.size
        or world.members.survives_losses
        or parameters is None
        or not shape.numel()
    ):
        return False
    if kind == "broadcast":
        return True
    if kind == "neighbor_allreduce":
        return dtype in _COMBINED
    adds = (
        dtype in _ADDED
        and parameters.op in ("sum", "average")
        and parameters.prescale == parameters.postscale == 1.0
        and not parameters.splits
        and not parameters.local_only
    )
    if kind == "reducescatter":
        return adds and shape[0] % comm.size == 0
    return adds and kind == "allreduce"


def make_nccl_call(
    comm: Communicator,
    staging: Staging,
    kind: str,
    name: str | None,
    dtype: str,
    source: torch.Tensor,
    destination: torch.Tensor,
    finish: Callable[[int], torch.Tensor],
    parameters: Parameters | None,
    timeout_s: float | None,
) -> Call[torch.Tensor]:
    """Return a call whose ticket NCCL's queue carries out; see ``goes_through_nccl``.

    Args:
        comm: As in ``goes_through_nccl``.
        staging: As in ``goes_through_nccl``.
        kind: As in ``goes_through_nccl``.
        name: Name that the caller gave.
        dtype: As in ``goes_through_nccl``.
        source: Contiguous tensor on the device.
        destination: Contiguous tensor on the device for the result; ``source`` itself,
            or apart from it.
        finish: Makes the result, on the current stream, when ``destination`` is filled
            in the order of that stream.
        parameters: As in ``goes_through_nccl``.
        timeout_s: Deadline that the caller gave.

    Raises:
        RuntimeError: NCCL or the device cannot be used, or the current stream captures
            a CUDA graph.
        ValueError: Calls before were on another device, or ``timeout_s`` is not above
            0.
        BluecommError: An earlier failure has ended the communicator of NCCL.
    """
    assert isinstance(staging, CudaStaging)
    assert parameters is not None
    world = comm.world
    if timeout_s is not None:
        check_timeout(kind, timeout_s)
    limit_s = world.config.operation_timeout_s if timeout_s is None else timeout_s
    queue = world.nccl_calls.queue_of(staging)

    # These functions do not refer to the call, which refers to them: the garbage
    # collector frees cycles late, and this one would keep memory of the GPU.
    def error_of(failed: Completion) -> Exception:
        return failure(
            failed, kind=kind, name=name or "", rank=world.rank, timeout_s=limit_s
        )

    def finish_on_stream(number: int) -> torch.Tensor:
        failed = ticket.follow(staging.current_stream())
        if failed is not None:
            raise error_of(failed)
        if exchange is not None:
            exchange.combine()
        return finish(number)

    ended = queue.failure()
    if ended is not None:
        error = error_of(ended)
        if ended.code != PEER_LOST or ended.rank < 0:  # the engine tells of lost ranks
            refuse(comm, first_operations(comm, kind, name, [(kind, "")]), error)
        raise error
    exchange: NcclExchange | None = None
    if kind == "neighbor_allreduce":
        exchange = NcclExchange(staging, source, destination, parameters)
        ticket = queue.make_exchange(
            sends=exchange.sends,
            receives=exchange.receives,
            stream=staging.current_stream(),
            limit_s=float(limit_s),
        )
    else:
        ticket = _make_collective(
            queue, staging, kind, dtype, source, destination, parameters, limit_s
        )
    keep = (source, destination, exchange)
    staging.keep(ticket, keep)
    call = Call(kind, dtype, source.shape, NO_MEMORY, NO_MEMORY, keep, finish_on_stream)
    call.ticket = ticket
    return call


def _make_collective(
    queue: NcclQueue,
    staging: CudaStaging,
    kind: str,
    dtype: str,
    source: torch.Tensor,
    destination: torch.Tensor,
    parameters: Parameters,
    limit_s: float,
) -> NcclCall:
    """Return a call of the function of NCCL that does all of an operation."""
    count, element = source.numel(), dtype
    if kind == "broadcast":
        count, element = source.nbytes, "uint8"
    elif kind == "reducescatter":
        count = destination.numel()
    return queue.make_call(
        kind=kind,
        source=source.data_ptr(),
        destination=destination.data_ptr(),
        count=count,
        dtype=element,
        is_average=parameters.op == "average",
        root=parameters.root,
        stream=staging.current_stream(),
        limit_s=float(limit_s),
    )
