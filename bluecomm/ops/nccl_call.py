"""Makes the calls that go through NCCL, from their work on tensors on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from bluecomm.device.staging import CudaStaging, Staging
from bluecomm.ops.refusal import first_operations, refuse
from bluecomm.runtime import Communicator
from bluecomm.runtime.call import NO_MEMORY, Call, Result
from bluecomm.runtime.communicator import check_timeout
from bluecomm.runtime.failure import PEER_LOST, failure

if TYPE_CHECKING:
    from bluecomm._native import Completion, NcclCall, NcclGroup, NcclQueue


class NcclWork(Protocol):
    """The tensors of one call, and what NCCL does with them."""

    def make_ticket(
        self, queue: NcclQueue, group: NcclGroup, stream: int, limit_s: float
    ) -> NcclCall:
        """Return the call of the queue, on what a stream has computed so far.

        Args:
            queue: This rank's queue.
            group: Members that take part.
            stream: The program's current stream.
            limit_s: Seconds that the device may take for the call.
        """

    def complete(self) -> None:
        """Compute what NCCL has left to do, on the current stream."""


def uses_nccl(comm: Communicator, staging: Staging) -> bool:
    """Return whether NCCL carries out operations of these ranks, if it has them.

    The answer is the same on all members.
    """
    world = comm.world
    return (
        world.device_transport == "nccl"
        and isinstance(staging, CudaStaging)
        and not comm.owner
        and comm.size > 1
        and not world.members.survives_losses
    )


def make_nccl_call(
    comm: Communicator,
    staging: Staging,
    kind: str,
    name: str | None,
    dtype: str,
    shape: Sequence[int],
    work: NcclWork,
    finish: Callable[[int], Result],
    timeout_s: float | None,
) -> Call[Result]:
    """Return a call whose ticket NCCL's queue carries out; see ``uses_nccl``.

    Args:
        comm: Ranks that take part.
        staging: Staging of the device.
        kind: The engine's name of the operation.
        name: Name that the caller gave.
        dtype: The engine's name of the element type.
        shape: Shape of the input.
        work: The tensors. They live until the device has finished the call.
        finish: Makes the result, on the current stream, when the work is complete in
            the order of that stream.
        timeout_s: Deadline that the caller gave.

    Raises:
        RuntimeError: NCCL or the device cannot be used, or the current stream captures
            a CUDA graph.
        ValueError: Calls before were on another device, or ``timeout_s`` is not above
            0.
        BluecommError: An earlier failure has ended the communicators of NCCL.
    """
    assert isinstance(staging, CudaStaging)
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

    def finish_on_stream(number: int) -> Result:
        stream = staging.current_stream()
        failed = ticket.follow(stream)
        if failed is not None:
            raise error_of(failed)
        work.complete()
        result = finish(number)
        if stream != started_on and (point := staging.point()) is not None:
            # Torch would lend memory on the way to the stream of the start again.
            staging.keep(point, work)
        return result

    ended = queue.failure()
    if ended is not None:
        error = error_of(ended)
        if ended.code != PEER_LOST or ended.rank < 0:  # the engine tells of lost ranks
            refuse(comm, first_operations(comm, kind, name, [(kind, "")]), error)
        raise error
    started_on = staging.current_stream()
    ticket = work.make_ticket(queue, _group_of(comm), started_on, float(limit_s))
    staging.keep(ticket, work)
    call = Call(kind, dtype, shape, NO_MEMORY, NO_MEMORY, (work,), finish_on_stream)
    call.ticket = ticket
    return call


def _group_of(comm: Communicator) -> NcclGroup:
    from bluecomm._native import NcclGroup

    return NcclGroup(
        id=comm.group_id, rank=comm.rank, size=comm.size, first=comm.ranks[0]
    )
