"""Operations of several calls through NCCL, one after another."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bluecomm.ops.device_operation import DeviceOperation
from bluecomm.ops.follow_up_name import follow_up_name
from bluecomm.ops.nccl_call import NcclWork, limit_of, make_nccl_call
from bluecomm.ops.on_stream import OnStream
from bluecomm.ops.refusal import is_mismatch, refuse, refuse_start
from bluecomm.ops.time_budget import TimeBudget
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.call import Call
from bluecomm.runtime.chained_handle import ChainedHandle


class NcclStep(NamedTuple):
    """One call of an operation.

    Attributes:
        name: The end of the call's name.
        comm: Its members, one of which is this one.
        make_work: Returns its work, when the call before it is complete.
    """

    name: str
    comm: Communicator
    make_work: Callable[[], NcclWork]


class WorkInSteps(NamedTuple):
    """The work of the calls of one operation on one member.

    Attributes:
        first: Work of the first call, in which all members take part.
        later: The calls that follow, at least one.
    """

    first: NcclWork
    later: Sequence[NcclStep]


class NcclSteps:
    """The calls of one operation on one member.

    All members take part in the first call, by which they learn that their calls match.
    The work of each call is made, and completed, on the stream that is current when
    this object is made.

    Args:
        operation: The operation.
        steps: Its calls.
        finish: Makes the result, when the work of the last call is complete.
        timeout_s: Deadline that the caller gave.

    Attributes:
        first: The first call.

    Raises:
        RuntimeError, ValueError, BluecommError: As in ``make_nccl_call``.
    """

    def __init__(
        self,
        operation: DeviceOperation,
        steps: WorkInSteps,
        finish: Callable[[int], Any],
        timeout_s: float | None,
    ) -> None:
        self._comm = comm = operation.comm
        self._staging = staging = operation.staging
        self._kind = kind = operation.kind
        self._dtype = operation.dtype
        self._shape = operation.source.shape
        self._steps = steps.later
        self._finish = finish
        self._budget = TimeBudget(limit_of(comm, kind, timeout_s))
        self._stream = staging.stream_context()
        # Names and members of the calls that have yet to be started.
        self._left: list[tuple[str, Communicator]] = []
        self.first = self._call(comm, None, steps.first, lambda _: None)

    def begin(self, first: Call[None]) -> Handle[Any]:
        """Start the operation with its first call, whose settings are complete."""
        if first.name is None:
            first.name = self._comm.name_for(self._kind, None)
        begun = self._on_stream(self._comm.start(first))
        # Ranks may start the next operation of this name before the last call of this
        # one.
        name = follow_up_name(self._comm, first, "step")
        self._left = [(f"{name}.{step.name}", step.comm) for step in self._steps]
        start = functools.partial(self._start, first.blocking)
        *works, last = [step.make_work for step in self._steps]
        return ChainedHandle(
            begun,
            *(lambda _, work=work: start(work) for work in works),
            lambda _: start(last, self._finish),
            on_failure=self._refuse_left,
        )

    def _refuse_left(self, error: Exception) -> None:
        """Tell the members of the calls that will not follow."""
        has_begun = len(self._left) < len(self._steps)
        if is_mismatch(error) and not has_begun:
            return  # the first calls do not match, so no member starts these
        for name, comm in self._left:
            refuse(comm, [(self._kind, name, None)], error)

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
            self._kind,
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
                call.follows = True
                started = comm.start(call)
        except Exception as error:
            refuse_start(comm, self._kind, name, None, call, error)
            raise
        return started if finish else self._on_stream(started)

    def _on_stream(self, handle: Handle[Any]) -> Handle[Any]:
        return OnStream(handle, self._stream)
