"""One hierarchical_neighbor_allreduce through NCCL, in several calls.

All members first agree that they call. Then the members of a machine add their
tensors, so that each gets a slice of the mean. Each member exchanges its slice with
the members of other machines that have the same one. In the end the members of a
machine gather their slices. If machines have unlike numbers of members, the first
member of each machine has the whole mean as its slice. docs/notes/nccl-backend.md has
the states.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch

from bluecomm.device.staging import Staging
from bluecomm.errors import MismatchError
from bluecomm.ops.follow_up_name import follow_up_name
from bluecomm.ops.nccl_call import NcclWork, limit_of, make_nccl_call
from bluecomm.ops.nccl_collective import Collective
from bluecomm.ops.nccl_exchange import NcclExchange
from bluecomm.ops.nccl_gather import RowExchange
from bluecomm.ops.nccl_reductions import NcclReductions
from bluecomm.ops.on_stream import OnStream
from bluecomm.ops.refusal import refuse, refuse_start
from bluecomm.ops.splits import share_of
from bluecomm.ops.time_budget import TimeBudget
from bluecomm.runtime import Communicator, Handle, parameters
from bluecomm.runtime.call import Call
from bluecomm.runtime.chained_handle import ChainedHandle

if TYPE_CHECKING:
    from bluecomm._native import NcclCall, NcclGroup, NcclQueue, Parameters

_KIND = "hierarchical_neighbor_allreduce"

# The end of a call's name, its members, and what makes its work.
_Step = tuple[str, Communicator, Callable[[], NcclWork]]


class _Agreement:
    """Work without messages, by which all members learn that their calls match."""

    def make_ticket(
        self, queue: NcclQueue, group: NcclGroup, stream: int, limit_s: float
    ) -> NcclCall:
        """See ``NcclWork``."""
        return queue.make_exchange(
            group=group, sends=[], receives=[], stream=stream, limit_s=limit_s
        )

    def complete(self, gone: Collection[int]) -> None:
        """See ``NcclWork``."""


class NcclHierarchy:
    """The calls of one operation.

    Args:
        comm: Members that take part.
        staging: Staging of the device.
        dtype: The engine's name of the element type.
        source: Contiguous tensor on the device.
        result: Contiguous tensor for the result, apart from ``source``.
        weights: Parameters of the operation, between machines.
        finish: Makes the result, when ``result`` has been written.
        timeout_s: Deadline that the caller gave.

    Attributes:
        first: The call by which the members agree.

    Raises:
        RuntimeError, ValueError, BluecommError: As in ``make_nccl_call``.
    """

    def __init__(
        self,
        comm: Communicator,
        staging: Staging,
        dtype: str,
        source: torch.Tensor,
        result: torch.Tensor,
        weights: Parameters,
        finish: Callable[[int], Any],
        timeout_s: float | None,
    ) -> None:
        self._comm = comm
        self._staging = staging
        self._dtype = dtype
        self._shape = source.shape
        self._finish = finish
        self._budget = TimeBudget(limit_of(comm, _KIND, timeout_s))
        self._stream = staging.stream_context()
        self._steps = self._steps_of(dtype, source, result, weights)
        # Names and members of the calls that have yet to be started.
        self._left: list[tuple[str, Communicator]] = []
        self.first = self._call(comm, None, _Agreement(), lambda _: None)

    def _steps_of(
        self,
        dtype: str,
        source: torch.Tensor,
        result: torch.Tensor,
        weights: Parameters,
    ) -> list[_Step]:
        """Return the calls of this member that follow the agreement."""
        comm, staging = self._comm, self._staging
        machine = comm.machine_group
        if machine.size == 1:
            alone = functools.partial(NcclExchange, staging, source, result, weights)
            return [("mix", comm.first_ranks_group, alone)]
        is_even = comm.layout.is_homogeneous
        me, mates = machine.rank, range(machine.size)
        counts = [source.numel(), *(0 for _ in mates[1:])]
        if is_even:
            counts = [share_of(source.numel(), machine.size, mate) for mate in mates]
        mine = staging.empty((counts[me],), source.dtype)
        add = NcclReductions(
            dtype,
            source.view(-1),
            dict(enumerate(counts)),
            mine,
            me,
            parameters(op="average"),
        )
        exchange = functools.partial(NcclExchange, staging, mine, mine, weights)
        spread: NcclWork
        if is_even:
            to_all = dict.fromkeys(mates, (0, counts[me]))
            spread = RowExchange(
                *(mine, to_all, result.view(-1), mates, counts), gathers=True, copies=()
            )
        else:
            sent, root = (result if me else mine), parameters(root=0)
            spread = Collective("broadcast", dtype, sent, result, root)
        mix: list[_Step] = []
        if is_even:
            mix = [("mix", comm.neighbors_group, exchange)]
        elif me == 0:
            mix = [("mix", comm.first_ranks_group, exchange)]
        return [
            ("add", machine, lambda: add),
            *mix,
            ("spread", machine, lambda: spread),
        ]

    def begin(self, first: Call[None]) -> Handle[Any]:
        """Start the operation with its first call, whose settings are complete."""
        if first.name is None:
            first.name = self._comm.name_for(_KIND, None)
        agreed = self._on_stream(self._comm.start(first))
        # Ranks may start the next operation of this name before the last call of this
        # one.
        name = follow_up_name(self._comm, first, "step")
        self._left = [(f"{name}.{end}", comm) for end, comm, _ in self._steps]
        start = functools.partial(self._start, first.blocking)
        *works, last = [make_work for _, _, make_work in self._steps]
        return ChainedHandle(
            agreed,
            *(lambda _, work=work: start(work) for work in works),
            lambda _: start(last, self._finish),
            on_failure=self._refuse_left,
        )

    def _refuse_left(self, error: Exception) -> None:
        """Tell the members of the calls that will not follow."""
        has_agreed = len(self._left) < len(self._steps)
        if isinstance(error, MismatchError) and not has_agreed:
            return  # the members have not agreed, so none starts these calls
        for name, comm in self._left:
            refuse(comm, [(_KIND, name, None)], error)

    def _call(
        self,
        comm: Communicator,
        name: str | None,
        work: NcclWork,
        finish: Callable[[int], Any],
    ) -> Call[Any]:
        left_s = self._budget.left_s()
        call = make_nccl_call(
            comm,
            self._staging,
            _KIND,
            name,
            self._dtype,
            self._shape,
            work,
            finish,
            left_s,
        )
        call.name = name
        call.timeout_s = left_s
        return call

    def _start(
        self,
        blocking: bool,
        make_work: Callable[[], NcclWork],
        finish: Callable[[int], Any] | None = None,
    ) -> Handle[Any]:
        """Start one of the calls that follow; the last one has a result."""
        name, comm = self._left.pop(0)
        call: Call[Any] | None = None
        try:
            with self._stream:
                call = self._call(comm, name, make_work(), finish or (lambda _: None))
                call.blocking = blocking
                started = comm.start(call)
        except Exception as error:
            refuse_start(comm, _KIND, name, None, call, error)
            raise
        return started if finish else self._on_stream(started)

    def _on_stream(self, handle: Handle[Any]) -> Handle[Any]:
        return OnStream(handle, self._stream)
