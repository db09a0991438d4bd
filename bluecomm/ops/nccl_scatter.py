"""Scatters through NCCL: the root tells types and shapes on the host, then parts move.

Only the root knows types, shapes, and whether its parts are on a GPU. So a scatter of
these facts on the host comes first. The parts follow through NCCL, or in another
scatter on the host. docs/notes/nccl-backend.md has the states.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from bluecomm.device.runtime import current_runtime
from bluecomm.device.staging import Staging
from bluecomm.device.staging_table import staging_of
from bluecomm.ops.nccl_call import make_nccl_call
from bluecomm.ops.nccl_messages import Messages
from bluecomm.ops.overlaps import apart_from
from bluecomm.ops.own_device import own_device
from bluecomm.ops.refusal import refuse_start
from bluecomm.ops.scattered_parts import RootParts, type_and_shape, words_of
from bluecomm.ops.tensor import span
from bluecomm.ops.time_budget import TimeBudget
from bluecomm.ops.two_calls import start_two_calls
from bluecomm.runtime import Communicator, Handle, parameters
from bluecomm.runtime.call import NO_MEMORY, Call

_KIND = "scatter"
# The first word of the facts about a part.
_ON_GPU = "gpu"
_ON_HOST = "host"


class NcclScatter:
    """One scatter in a job whose tensors on GPUs go through NCCL.

    Args:
        comm: Members that take part.
        root: Number of the root.
        parts: The root's parts; ``None`` on the other members.
        out: Memory for the result that the caller gave.
        host_call: The call that moves parts on the host, without name and deadline;
            ``None`` on a root whose parts are on a GPU.
        place: Makes the result from this member's part on a GPU.
        limit_s: Deadline in seconds.

    Attributes:
        first: The call in which the root tells the facts.

    Raises:
        RuntimeError: The current stream captures a CUDA graph.
    """

    def __init__(
        self,
        comm: Communicator,
        root: int,
        parts: RootParts | None,
        out: torch.Tensor | None,
        host_call: Call[torch.Tensor] | None,
        place: Callable[[torch.Tensor], torch.Tensor],
        limit_s: float,
    ) -> None:
        self._comm = comm
        self._root = root
        self._parts = parts
        self._out = out
        self._host_call = host_call
        self._place = place
        self._budget = TimeBudget(limit_s)
        self._staging = _known_device(comm, parts, out)
        self._stream: contextlib.AbstractContextManager[Any] | None = None
        if (staging := self._staging) is not None:
            # Raises on a stream that captures a graph, before other ranks get numbers.
            staging.point()
            # The memory of the result belongs to the stream of the start.
            self._stream = staging.stream_context()
        self.first = self._call_of_facts()

    def begin(self, first: Call[str]) -> Handle[torch.Tensor]:
        """Start the operation with its first call, whose settings are complete."""
        return start_two_calls(self._comm, _KIND, first, "parts", self._start_parts)

    def _call_of_facts(self) -> Call[str]:
        """Return the call that gives each member the facts about its part."""
        world, parts = self._comm.world, self._parts
        own, told = "", torch.empty(0, dtype=torch.uint8)
        lengths: tuple[int, ...] = ()
        if parts is not None:
            where = _ON_GPU if parts.are_on_gpu else _ON_HOST
            texts = [
                f"{where} {words_of(tensor, dtype)}"
                for tensor, dtype in zip(parts.tensors, parts.dtypes, strict=True)
            ]
            own, lengths = texts[self._root], tuple(map(len, texts))
            told = torch.frombuffer(
                bytearray("".join(texts).encode()), dtype=torch.uint8
            )

        def finish(number: int) -> str:
            if own:
                return own
            block, rows = world.output(number)
            return bytes(memoryview(block)[: sum(rows)]).decode()

        call = Call(_KIND, "uint8", told.shape, span(told), NO_MEMORY, (told,), finish)
        call.precedes_ticket = True
        call.parameters = parameters(root=self._root, splits=lengths)
        return call

    def _start_parts(self, name: str, blocking: bool, facts: str) -> Handle[Any]:
        """Start the call that moves the parts, when the facts are known."""
        where, words = facts.split(" ", 1)
        call: Call[Any] | None = None
        try:
            if where == _ON_HOST:
                call = self._host_call
                assert call is not None
                call.name = name
                call.timeout_s = self._budget.left_s()
            else:
                staging = self._staging or own_device(self._comm, _KIND)
                with self._stream or staging.stream_context():
                    call = self._call_on_gpu(name, staging, words)
            call.blocking = blocking
            call.follows = True
            return self._comm.start(call)
        except Exception as error:
            refuse_start(self._comm, _KIND, name, None, call, error)
            raise

    def _call_on_gpu(
        self, name: str, staging: Staging, words: str
    ) -> Call[torch.Tensor]:
        comm, parts, out = self._comm, self._parts, self._out
        if parts is None:
            dtype, shape = type_and_shape(words)
            part = staging.empty(shape, dtype)
            if out is not None and _suits(out, staging, part):
                part = out
            nbytes, work = part.nbytes, Messages(comm.rank, (), [(self._root, part)])
        else:
            part = parts.tensors[self._root]
            if out is not None and staging_of(out) is staging:
                part = apart_from(out, part)
            others = [one for one in enumerate(parts.tensors) if one[0] != self._root]
            nbytes = sum(tensor.nbytes for tensor in parts.tensors)
            work = Messages(comm.rank, others, ())
        place = self._place
        call = make_nccl_call(
            *(comm, staging, _KIND, name, "uint8", (nbytes,)),
            *(work, lambda _: place(part), self._budget.left_s()),
        )
        call.parameters = parameters(root=self._root)
        return call


def _known_device(
    comm: Communicator, parts: RootParts | None, out: torch.Tensor | None
) -> Staging | None:
    """Return the staging of this member's GPU, if it is known before the root tells.

    A process that has not used CUDA does not start it before the root tells. It has no
    current stream but the default one.
    """
    if parts is not None:
        return parts.staging
    given = None if out is None else staging_of(out)
    if given := given or comm.world.nccl_calls.staging:
        return given
    if current_runtime().is_in_use():
        with contextlib.suppress(RuntimeError):  # raised if the parts are on a GPU
            return own_device(comm, _KIND)
    return None


def _suits(out: torch.Tensor, staging: Staging, part: torch.Tensor) -> bool:
    """Return whether a part can be received into memory that the caller gave."""
    return (
        staging_of(out) is staging
        and out.is_contiguous()
        and (out.dtype, out.shape) == (part.dtype, part.shape)
    )
