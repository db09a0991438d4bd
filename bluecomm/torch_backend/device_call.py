"""The calls of a group that go through NCCL.

docs/notes/nccl-backend.md describes their states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from bluecomm.device.staging import Staging
from bluecomm.ops.nccl_call import NcclWork, send_through_nccl
from bluecomm.ops.nccl_collective import goes_through_nccl, nccl_work
from bluecomm.ops.nccl_gather import RowExchange, gathers_through_nccl
from bluecomm.ops.refusal import refuse_start
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.call import NO_MEMORY, Call
from bluecomm.torch_backend.staged import Destination
from bluecomm.torch_backend.tensors import overlap


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
        staging: Staging of the device.
        facts: Properties that must be equal on all ranks.
        work: The tensors.
        finish: End of the call, on the stream that is current in a wait.
    """

    __slots__ = ("_staging", "_work")

    def __init__(
        self,
        staging: Staging,
        facts: Facts,
        work: NcclWork,
        finish: Callable[[int], None],
    ) -> None:
        super().__init__(
            facts.kind, facts.dtype, facts.shape, NO_MEMORY, NO_MEMORY, (work,), finish
        )
        self.parameters = facts.parameters
        self._staging = staging
        self._work = work

    def begin(self, comm: Communicator) -> Handle[None]:
        """Start the call, whose name and deadline are known.

        Raises:
            RuntimeError: NCCL or the device cannot be used, or the current stream
                captures a CUDA graph.
            BluecommError: The world cannot be used, or an earlier failure has ended the
                communicator of NCCL.
        """
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
    return call.begin(comm) if isinstance(call, DeviceCall) else comm.start(call)


def device_call(
    comm: Communicator,
    staging: Staging,
    facts: Facts,
    source: torch.Tensor | None,
    destination: Destination,
    finish: Callable[[int], None],
) -> DeviceCall | None:
    """Return a call that NCCL carries out; ``None`` for one that is staged.

    All ranks whose calls match choose alike. Calls of a job that survives losses are
    staged.

    Args:
        comm: Members of the group.
        staging: Staging of the tensors' device.
        facts: Properties that must be equal on all ranks.
        source: Contiguous input, or ``None``.
        destination: Contiguous memory of the result.
        finish: End of the call, on the stream that is current in a wait.
    """
    if source is None or comm.is_repeated:
        return None
    kind, dtype, shape, parameters = facts
    if kind == "allgather" and not isinstance(destination, torch.Tensor | None):
        return _allgather(comm, staging, facts, source, destination, finish)
    if kind == "reduce" and destination is None:
        destination = source  # nothing is written there, since the root is another rank
    elif kind == "reducescatter":
        source = source.view(-1)
    if not isinstance(destination, torch.Tensor) or parameters is None:
        return None
    if not goes_through_nccl(comm, staging, kind, dtype, torch.Size(shape), parameters):
        return None
    work = nccl_work(comm, staging, kind, dtype, source, destination, parameters)
    return DeviceCall(staging, facts, work, finish)


def _allgather(
    comm: Communicator,
    staging: Staging,
    facts: Facts,
    source: torch.Tensor,
    parts: Sequence[torch.Tensor],
    finish: Callable[[int], None],
) -> DeviceCall | None:
    """Return a call that gathers as many elements of each rank.

    Args:
        comm: Members of the group.
        staging: Staging of the tensors' device.
        facts: Properties that must be equal on all ranks.
        source: Contiguous input.
        parts: Contiguous memory for the elements of each rank, or one tensor for all.
        finish: End of the call.
    """
    count, kind = source.numel(), facts.kind
    if not count or not gathers_through_nccl(comm, staging, kind):
        return None
    flat = source.view(-1)
    if len(parts) == 1:
        result, copies = parts[0].view(-1), []
        own = result[comm.rank * count :]
        if overlap(flat, result) and own.data_ptr() != flat.data_ptr():
            flat = flat.clone()
    elif all(one.numel() == count and one.dtype == source.dtype for one in parts):
        result = staging.empty((count * comm.size,), source.dtype)
        copies = [one.view(-1) for one in parts]
    else:
        return None
    work = RowExchange(
        flat,
        dict.fromkeys(range(comm.size), (0, count)),
        result,
        range(comm.size),
        [count] * comm.size,
        gathers=True,
        copies=copies,
    )
    # The ranks compare all dimensions but the first.
    return DeviceCall(staging, facts._replace(shape=(1, count)), work, finish)
