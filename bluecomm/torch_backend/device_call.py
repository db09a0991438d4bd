"""The calls of a group that go through NCCL.

docs/notes/nccl-backend.md describes their states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from bluecomm.device.staging import Staging
from bluecomm.ops.device_operation import DeviceOperation
from bluecomm.ops.nccl_call import NcclWork, send_through_nccl, uses_nccl
from bluecomm.ops.nccl_choice import goes_through_nccl, nccl_work
from bluecomm.ops.nccl_gather import RowExchange
from bluecomm.ops.nccl_messages import Messages
from bluecomm.ops.overlaps import apart_from, overlap
from bluecomm.ops.refusal import refuse_start
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime import parameters as make_parameters
from bluecomm.runtime.call import NO_MEMORY, Call
from bluecomm.torch_backend.device_messages import messages_of
from bluecomm.torch_backend.staged import Destination
from bluecomm.torch_backend.tensors import both, written_back

# Kinds that move values without a reduction, to or from each rank.
_OF_MESSAGES = frozenset({"allgather", "alltoall", "gather", "scatter"})


class Facts(NamedTuple):
    """The properties of a call that must be equal on all ranks.

    Attributes:
        kind: The engine's name of the operation.
        dtype: The engine's name of the element type.
        shape: The shape of the input.
        parameters: Parameters of the kind; ``None`` for the defaults.
    """

    kind: str
    dtype: str
    shape: Sequence[int]
    parameters: Any


class DeviceCall(Call[None]):
    """A call that NCCL carries out, once ``begin`` has given it to the queue.

    Args:
        comm: Members that take part.
        staging: Staging of the device.
        facts: Properties that must be equal on all ranks.
        tensors: Input and result, which the flight record describes.
        work: What NCCL does with them.
        finish: End of the call, on the stream that is current in a wait.
    """

    __slots__ = ("_comm", "_staging", "_work")

    def __init__(
        self,
        comm: Communicator,
        staging: Staging,
        facts: Facts,
        tensors: tuple[torch.Tensor | None, Destination],
        work: NcclWork,
        finish: Callable[[int], None],
    ) -> None:
        kind, dtype, shape, _ = facts
        keep = (*tensors, work)
        super().__init__(kind, dtype, shape, NO_MEMORY, NO_MEMORY, keep, finish)
        self.parameters = facts.parameters
        self._comm = comm
        self._staging = staging
        self._work = work

    def begin(self) -> Handle[None]:
        """Start the call, whose name and deadline are known.

        Raises:
            RuntimeError: NCCL or the device cannot be used, or the current stream
                captures a CUDA graph.
            BluecommError: The world cannot be used, or an earlier failure has ended the
                communicator of NCCL.
        """
        comm = self._comm
        try:
            send_through_nccl(comm, self._staging, self, self._work)
            return comm.start(self)
        except Exception as error:
            refuse_start(comm, self.kind, self.name, self.parameters, self, error)
            raise


def begin(comm: Communicator, call: Call[None]) -> Handle[None]:
    """Start a call of a group, whose name and deadline are known.

    Raises:
        BluecommError: The world cannot be used, or NCCL has failed.
        RuntimeError: As in ``DeviceCall.begin``.
    """
    return call.begin() if isinstance(call, DeviceCall) else comm.start(call)


def device_call(
    comm: Communicator,
    staging: Staging,
    facts: Facts,
    source: torch.Tensor | None,
    destination: Destination,
    parts: Sequence[int] | None,
    finish: Callable[[int], None],
) -> DeviceCall | None:
    """Return a call that NCCL carries out; ``None`` for one that is staged.

    All ranks whose calls match choose alike. In a job that survives losses a call may
    be repeated, so its result does not overwrite its input.

    Args:
        comm: Members of the group.
        staging: Staging of the tensors' device.
        facts: Properties that must be equal on all ranks.
        source: Contiguous input, or ``None``.
        destination: Contiguous memory of the result.
        parts: Elements of each rank in a single tensor of an alltoall.
        finish: End of the call, on the stream that is current in a wait.
    """
    kind, dtype, shape, parameters = facts
    if kind in _OF_MESSAGES:
        if not uses_nccl(comm, staging):
            return None
        if kind == "allgather":
            assert source is not None
            assert not isinstance(destination, torch.Tensor | None)
            return _allgather(comm, staging, facts, source, destination, finish)
        tensors = source, destination
        source = _apart(source, destination)
        work: NcclWork = messages_of(
            *(kind, comm.rank, comm.size, source, destination, parts, parameters)
        )
        return _divided(DeviceCall(comm, staging, facts, tensors, work, finish))
    if source is None or parameters is None:
        return None
    tensors = source, destination
    if kind == "reduce" and destination is None:
        destination = source  # nothing is written there, since the root is another rank
    elif kind == "reducescatter":
        source = source.view(-1)
    if not isinstance(destination, torch.Tensor):
        return None
    if not goes_through_nccl(comm, staging, kind, dtype, torch.Size(shape), parameters):
        return None
    if comm.is_repeated and tensors[1] is not None and overlap(source, destination):
        result = staging.empty(destination.shape, destination.dtype)
        finish = both(written_back(destination, result), finish)
        destination = result
    work = nccl_work(
        DeviceOperation(comm, staging, kind, dtype, source, destination, parameters)
    )
    return DeviceCall(comm, staging, facts, tensors, work, finish)


def message_call(
    comm: Communicator,
    staging: Staging,
    memory: torch.Tensor,
    dtype: str,
    sender: int,
    receiver: int,
    finish: Callable[[int], None],
) -> DeviceCall | None:
    """Return one end of a message through NCCL; ``None`` for one that is staged.

    Each pair of ranks has a communicator of its own, as NCCL needs all members of one.
    Both ends are a broadcast of the pair, so that they compare types and sizes.

    Args:
        comm: Members of the group.
        staging: Staging of the tensor's device.
        memory: Contiguous tensor that is sent or received.
        dtype: The engine's name of the element type.
        sender: Number of the member that sends.
        receiver: Number of the member that receives.
        finish: End of the call, on the stream that is current in a wait.
    """
    if not uses_nccl(comm, staging) or sender == receiver:
        return None
    pair = comm.subgroup(sorted((sender, receiver)), "messages")
    root, to = (pair.ranks.index(comm.ranks[one]) for one in (sender, receiver))
    facts = Facts("broadcast", dtype, (memory.numel(),), make_parameters(root=root))
    is_sent = comm.rank == sender
    sends, receives = [(to, memory)] * is_sent, [(root, memory)] * (not is_sent)
    work = Messages(pair.rank, sends, receives)
    tensors = (memory, None) if is_sent else (None, memory)
    return DeviceCall(pair, staging, facts, tensors, work, finish)


def check_source(comm: Communicator, staging: Staging, operation: str) -> None:
    """Raise if a receive from any rank would have to go through NCCL.

    Raises:
        RuntimeError: It would.
    """
    if uses_nccl(comm, staging):
        raise RuntimeError(
            f"{operation} on rank {comm.world.rank}: NCCL has no receive from any "
            "rank, and the tensor is on a GPU; pass src, let all ranks use tensors on "
            "the CPU, or set BLUECOMM_DEVICE_TRANSPORT=staged"
        )


def _allgather(
    comm: Communicator,
    staging: Staging,
    facts: Facts,
    source: torch.Tensor,
    parts: Sequence[torch.Tensor],
    finish: Callable[[int], None],
) -> DeviceCall | None:
    """Return a call that gathers the elements of each rank.

    Args:
        comm: Members of the group.
        staging: Staging of the tensors' device.
        facts: Properties that must be equal on all ranks.
        source: Contiguous input.
        parts: Contiguous memory for the elements of each rank, or one tensor for all.
        finish: End of the call.
    """
    count, flat = source.numel(), source.view(-1)
    if len(parts) == 1 and comm.size > 1:
        if not count:
            return None
        result, copies = parts[0].view(-1), []
        own = result[comm.rank * count :]
        if overlap(flat, result) and own.data_ptr() != flat.data_ptr():
            flat = flat.clone()
    elif count and all(one.nbytes == source.nbytes for one in parts):
        result = staging.empty((count * comm.size,), source.dtype)
        copies = [one.view(-1).view(source.dtype) for one in parts]
    else:
        # Ranks compare the number of dimensions, and all but the first.
        facts = facts._replace(shape=(count, 1, 1))
        tensors = source, parts
        work = messages_of(
            *(facts.kind, comm.rank, comm.size, _apart(source, parts), parts),
            *(None, None),
        )
        return _divided(DeviceCall(comm, staging, facts, tensors, work, finish))
    work_of_rows = RowExchange(
        flat,
        dict.fromkeys(range(comm.size), (0, count)),
        result,
        range(comm.size),
        [count] * comm.size,
        gathers=True,
        copies=copies,
    )
    facts = facts._replace(shape=(1, count))
    tensors = source, parts
    return _divided(DeviceCall(comm, staging, facts, tensors, work_of_rows, finish))


def _apart(
    source: torch.Tensor | None, destination: Destination
) -> torch.Tensor | None:
    """Return the input of an exchange: a copy if it overlaps the result."""
    if source is None or destination is None:
        return source
    results = [destination] if isinstance(destination, torch.Tensor) else destination
    for result in results:
        source = apart_from(result, source)
    return source


def _divided(call: DeviceCall) -> DeviceCall:
    """Note that a call has a part for each rank, so it needs all members."""
    call.has_parts = True
    return call
