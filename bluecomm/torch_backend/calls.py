"""Starts the engine's operations for a group of torch."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bluecomm.errors import ShutdownError
from bluecomm.ops.tensor import span
from bluecomm.runtime import Communicator
from bluecomm.runtime.call import NO_MEMORY, Call
from bluecomm.runtime.communicator import UNNAMED
from bluecomm.runtime.handle import wait_all
from bluecomm.torch_backend.compat import is_async
from bluecomm.torch_backend.tensors import done
from bluecomm.torch_backend.work import GroupWork

# Names of operations repeat after so many calls, so that the tables of names stay
# small.
_NAMES = 4096


class GroupCalls:
    """The part of a group that starts operations and returns their work.

    torch requires that all ranks of a group call its collectives in the same order. So
    one counter names the operations of all kinds: a rank that calls another collective
    than its peers gets a MismatchError with both names.

    Args:
        communicator: Members of the group.
        timeout_s: Deadline of operations; None for the deadline of the engine.
    """

    def __init__(self, communicator: Communicator, timeout_s: float | None) -> None:
        self._comm = communicator
        self._timeout_s = timeout_s
        self._is_closed = False
        self._numbers = itertools.count()
        self._sequence = 0
        # torch sets both.
        self._name = ""
        self._description = ""

    def _check_open(self, operation: str) -> None:
        """Raise if the group has been destroyed.

        Raises:
            ShutdownError: The group has been destroyed.
        """
        if self._is_closed:
            raise ShutdownError.describe(
                f"process group {self._name!r} of ranks {list(self._comm.ranks)} has "
                "been destroyed",
                operation=operation,
                rank=self._comm.world.rank,
                remedy="Make a new group with torch.distributed.new_group or "
                "init_process_group",
            )

    def _limit_s(self, options: Any) -> float | None:
        """Return the deadline of a call; torch gives -1 ms for none."""
        timeout: datetime.timedelta | None = getattr(options, "timeout", None)
        if timeout is None or timeout.days < 0:
            return self._timeout_s
        return timeout.total_seconds()

    def _call(
        self,
        kind: str,
        dtype: str,
        shape: Sequence[int],
        source: torch.Tensor | None,
        destination: torch.Tensor | None,
        *,
        parameters: Any = None,
        finish: Callable[[int], None] = done,
        keep: tuple[object, ...] = (),
    ) -> Call[None]:
        """Return a call of the engine on contiguous memory."""
        call = Call(
            kind,
            dtype,
            shape,
            NO_MEMORY if source is None else span(source),
            NO_MEMORY if destination is None else span(destination),
            (source, destination, *keep),
            finish,
        )
        call.parameters = parameters
        return call

    def _run(
        self,
        operation: str,
        calls: Sequence[Call[None]],
        options: Any,
        outputs: list[torch.Tensor],
    ) -> GroupWork | None:
        """Start the calls of one collective; wait for them unless it is asynchronous.

        Args:
            operation: torch's name of the collective.
            calls: The engine's operations.
            options: torch's options of the collective.
            outputs: Value of the work's future.

        Returns:
            Work of an asynchronous collective; None after a synchronous one.
        """
        self._check_open(operation)
        self._sequence += 1
        waits = not is_async(options)
        limit_s = self._limit_s(options)
        handles = []
        for call in calls:
            call.name = f"torch{UNNAMED}{next(self._numbers) % _NAMES}"
            call.timeout_s = limit_s
            call.blocking = waits and len(calls) == 1
            handles.append(self._comm.start(call))
        if waits:
            wait_all(handles)
            return None
        return GroupWork(handles, outputs)
