"""Makes the calls that go through NCCL, from their work on tensors on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.staging import Staging
from bluecomm.device.staging_table import staging_of
from bluecomm.ops.refusal import first_operations, refuse
from bluecomm.ops.tensor import nbytes_of
from bluecomm.runtime import Communicator
from bluecomm.runtime.call import CALLERS_LIMIT_S, NO_MEMORY, Call, GroupMembers, Result
from bluecomm.runtime.check_timeout import check_timeout
from bluecomm.runtime.failure import FREED, PEER_LOST, failure

if TYPE_CHECKING:
    from bluecomm._native import Completion, NcclCall, NcclGroup, NcclQueue, Parameters

# Operations that on the host need the neighbors only.
_OF_NEIGHBORS = frozenset({"neighbor_allgather", "neighbor_allreduce"})


class NcclWork(Protocol):
    """The tensors of one call, and what NCCL does with them."""

    def make_draft(
        self, queue: NcclQueue, group: NcclGroup, stream: int, limit_s: float
    ) -> NcclCall:
        """Return the draft of a call, whose input ``stream`` has computed so far.

        Args:
            queue: This rank's queue.
            group: Members that take part.
            stream: The program's current stream.
            limit_s: Seconds that the device may take for the call.
        """

    def complete(self, gone: Collection[int]) -> None:
        """Compute what NCCL has left to do, on the current stream.

        Args:
            gone: Members that took no part, because they were lost before.
        """


class NcclTickets:
    """Makes the tickets of one call from its draft.

    Args:
        queue: This rank's queue.
        staging: Staging of the device, which keeps the tensors.
        work: The tensors.
        draft: The draft of the call.
    """

    def __init__(
        self, queue: NcclQueue, staging: CudaStaging, work: NcclWork, draft: NcclCall
    ) -> None:
        self._queue = queue
        self._staging = staging
        self._work = work
        self._draft = draft
        # The ticket that was made last, and the ranks of its group.
        self._ticket = draft
        self._ranks: tuple[int, ...] = ()

    def make(self, group: GroupMembers) -> NcclCall:
        """See ``Tickets``."""
        self._ranks = group.ranks
        self._ticket = self._queue.enter(self._draft, _group_of(group))
        self._staging.keep(self._ticket, self._work)
        return self._ticket

    def withdraw(self) -> None:
        """See ``Tickets``."""
        self._ticket.withdraw()

    def without(self, ranks: Sequence[int]) -> list[int]:
        """Return the indices in ``ranks`` of those that took no part in the call."""
        return [i for i, rank in enumerate(ranks) if rank not in self._ranks]

    def follow(self, stream: int) -> Completion | None:
        """Make later work of a stream wait for the result, or return the failure."""
        return self._ticket.follow(stream)


def offers_nccl(comm: Communicator) -> bool:
    """Return whether NCCL carries out operations of these ranks on tensors of GPUs.

    Unlike ``uses_nccl`` it needs no tensor, and never warns. The answer is the same on
    all members.
    """
    return (
        comm.size > 1
        and comm.may_use_nccl
        and comm.world.device_transport.path == "nccl"
    )


def uses_nccl(comm: Communicator, staging: Staging) -> bool:
    """Return whether NCCL carries out operations of these ranks, if it has them.

    The answer is the same on all members. The first time that it is no for the whole
    job, rank 0 warns.
    """
    return (
        isinstance(staging, CudaStaging)
        and comm.size > 1
        and comm.may_use_nccl
        and comm.world.device_transport.offers_nccl()
    )


def concerned_by(
    comm: Communicator, kind: str, tensor: object, parameters: Parameters | None
) -> Parameters | None:
    """Return the parameters that say whom to tell of a refused call; see ``refuse``.

    A call between neighbors needs all members, if NCCL would carry it out.
    """
    if kind in _OF_NEIGHBORS and isinstance(tensor, torch.Tensor):
        staging = staging_of(tensor)
        if staging is not None and uses_nccl(comm, staging):
            return None
    return parameters


def limit_of(comm: Communicator, kind: str, timeout_s: float | None) -> float:
    """Return the deadline of a call in seconds.

    Raises:
        TypeError: The given one is not a number.
        ValueError: It is not above 0.
    """
    if timeout_s is None:
        return comm.world.config.operation_timeout_s
    check_timeout(kind, timeout_s)
    return timeout_s


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
        BluecommError: As in ``send_through_nccl``, and so for the other errors.
    """
    call = Call(kind, dtype, shape, NO_MEMORY, NO_MEMORY, (work,), finish)
    call.name = name
    call.timeout_s = timeout_s
    send_through_nccl(comm, staging, call, work)
    return call


def send_through_nccl(
    comm: Communicator, staging: Staging, call: Call[Result], work: NcclWork
) -> None:
    """Let NCCL's queue carry out a call, on what the current stream has computed.

    Args:
        comm: Ranks that take part.
        staging: Staging of the device.
        call: Call without memory, whose deadline is set. Its name is set if the caller
            gave one. It keeps ``work``.
        work: The tensors. They live until the device has finished the call.

    Raises:
        RuntimeError: NCCL or the device cannot be used, or the current stream captures
            a CUDA graph.
        TypeError: ``timeout_s`` is not a number.
        ValueError: An earlier call through NCCL was on another device, or ``timeout_s``
            is not above 0.
        ShutdownError: After ``shutdown``.
        BluecommError: An earlier failure has ended NCCL's communicator of these ranks.
    """
    assert isinstance(staging, CudaStaging)
    world = comm.world
    kind, name, timeout_s, finish = call.kind, call.name, call.timeout_s, call.finish
    limit_s = limit_of(comm, kind, timeout_s)
    queue = world.nccl_calls.queue_of(staging)

    ranks, is_repeated = comm.ranks, comm.is_repeated

    # These functions do not refer to the call, which refers to them: the garbage
    # collector frees cycles late, and this one would keep memory of the GPU.
    def error_of(failed: Completion) -> Exception:
        return failure(
            failed, kind=kind, name=name or "", rank=world.rank, timeout_s=limit_s
        )

    def finish_on_stream(number: int) -> Result:
        stream = staging.current_stream()
        failed = tickets.follow(stream)
        if failed is not None:
            raise error_of(failed)
        work.complete(tickets.without(ranks) if is_repeated else ())
        result = finish(number)
        if stream != started_on:
            staging.keep_for_stream(work)
        return result

    # In a job that survives losses, the members that are left have another group.
    ended = None if comm.is_repeated else queue.failure_of(_group_of(comm))
    if ended is not None:
        error = error_of(ended)
        error.args = (f"{kind} on rank {world.rank}: {error}",)
        # The engine tells of lost ranks, and of members that have freed the group.
        is_told = ended.code == FREED or (ended.code == PEER_LOST and ended.rank >= 0)
        if not is_told:
            refuse(comm, first_operations(comm, kind, name, [(kind, "")]), error)
        raise error
    started_on = staging.current_stream()
    # The device always has a limit, by which a kernel that hangs is noticed.
    device_s = limit_s
    if limit_s == CALLERS_LIMIT_S:
        device_s = world.config.operation_timeout_s
    draft = work.make_draft(queue, _group_of(comm), started_on, float(device_s))
    call.tickets = tickets = NcclTickets(queue, staging, work, draft)
    call.finish = finish_on_stream
    world.nccl_calls.count(comm.group_id, nbytes_of(call.dtype, call.shape))


def _group_of(members: GroupMembers) -> NcclGroup:
    from bluecomm._native import NcclGroup

    return NcclGroup(id=members.group_id, rank=members.rank, ranks=members.ranks)
