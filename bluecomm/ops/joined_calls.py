"""Calls through NCCL in which a rank that has joined takes part for the others.

The engine itself answers the calls on the host. A call through NCCL needs memory of
this rank's GPU, so the engine hands it to ``join``, which makes the same call with the
neutral value of its reduction. docs/data-plane.md has the states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from bluecomm.device.staging import Staging
from bluecomm.ops.own_device import own_device
from bluecomm.ops.refusal import refuse_start
from bluecomm.ops.splits import share_of
from bluecomm.ops.start import start
from bluecomm.ops.tensor import dtype_of_word
from bluecomm.runtime.call import CALLERS_LIMIT_S
from bluecomm.runtime.failure import is_late
from bluecomm.runtime.handle import abandon_all

if TYPE_CHECKING:
    from bluecomm._native import Parameters
    from bluecomm.runtime import Communicator, Handle
    from bluecomm.runtime.world import World

# How often to look for calls: soon after a call, and seldom where there are none.
_SHORTEST_S = 0.0002
_LONGEST_S = 0.02


class JoinedCalls:
    """Takes part in calls through NCCL with neutral values.

    Without NCCL there are no such calls. Only the thread that has joined uses it.

    Args:
        world: The world. Its engine has joined.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._uses_nccl = world.device_transport.path == "nccl"
        self._handles: list[Handle[torch.Tensor]] = []
        self._late: Exception | None = None

    def await_end(self, wait: Callable[[float | None], bool]) -> None:
        """Take part in all calls of others until a wait has ended.

        The others rely on the rest of ``join``, so late failures wait for
        ``raise_late``.

        Args:
            wait: Waits for at most that many seconds, or without a limit, and returns
                whether what it waits for has ended.
        """
        pause_s: float | None = _SHORTEST_S if self._uses_nccl else None
        while not self._has_ended(wait, pause_s):
            assert pause_s is not None
            pause_s = _SHORTEST_S if self._serve() else min(2 * pause_s, _LONGEST_S)

    def wait_for_own(self) -> None:
        """Wait until the calls in which this rank takes part have ended."""
        handles, self._handles = self._handles, []
        for handle in handles:
            self._take(handle, self._world.config.operation_timeout_s)
        abandon_all(handles, "all ranks have joined")

    def raise_late(self) -> None:
        """Raise the failure of an earlier call of this rank that ``join`` has taken."""
        if self._late is not None:
            raise self._late

    def _has_ended(
        self, wait: Callable[[float | None], bool], limit_s: float | None
    ) -> bool:
        """Return the result of ``wait``.

        If it raises the late failure of an earlier call, keep the failure and return
        True, because the awaited operation has succeeded.
        """
        try:
            return wait(limit_s)
        except Exception as error:
            if not is_late(error):
                raise
            self._late = self._late or error
            return True

    def _serve(self) -> bool:
        """Start the calls that have been announced; return whether there were any."""
        found = False
        while (announced := self._world.engine.take_announced()) is not None:
            found = True
            self._drop_ended()
            comm = self._world.communicators.get(announced[0])
            # The engine refuses a call that is not made.
            if comm is not None:
                self._take_part(comm, *announced[1:])
        return found

    def _drop_ended(self) -> None:
        ended = [handle for handle in self._handles if handle.done()]
        self._handles = [handle for handle in self._handles if handle not in ended]
        for handle in ended:
            self._take(handle, None)

    def _take(self, handle: Handle[torch.Tensor], timeout_s: float | None) -> None:
        """Take the outcome of a call, whose failure its callers raise."""
        try:
            handle.wait(timeout_s)
        except Exception as error:
            if is_late(error):
                self._late = self._late or error

    def _take_part(
        self,
        comm: Communicator,
        kind: str,
        name: str,
        dtype: str,
        shape: list[int],
        parameters: Parameters,
    ) -> None:
        """Start this member's part of a call, or tell the others why it cannot."""
        try:
            tensor = _neutral(own_device(comm, kind), dtype, shape, parameters)
            handle = start(
                comm,
                kind,
                tensor,
                name=name,
                timeout_s=CALLERS_LIMIT_S,
                rows=_own_rows(comm, kind, shape, parameters),
                parameters=parameters,
            )
        except Exception as error:
            refuse_start(comm, kind, name, None, None, error)
        else:
            self._handles.append(handle)


def _own_rows(
    comm: Communicator, kind: str, shape: list[int], parameters: Parameters
) -> int | None:
    """Return the rows of this member's result, if they are fewer than its input's."""
    if kind != "reducescatter":
        return None
    splits = parameters.splits
    return splits[comm.rank] if splits else share_of(shape[0], comm.size, comm.rank)


def _neutral(
    staging: Staging, dtype: str, shape: list[int], parameters: Parameters
) -> torch.Tensor:
    from bluecomm._native import neutral_value

    value = bytearray(neutral_value(dtype, parameters.op, parameters.prescale))
    element = torch.frombuffer(value, dtype=dtype_of_word(dtype)).view(())
    tensor = staging.empty(shape, element.dtype)
    return tensor.copy_(staging.to_device(element).expand(shape))
