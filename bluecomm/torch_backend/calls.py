"""Starts the engine's operations for a group of torch."""

from __future__ import annotations

import collections
import contextlib
import datetime
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import DebugLevel, get_debug_level

from bluecomm.device.staging import Staging
from bluecomm.device.staging_table import staging_of
from bluecomm.errors import ShutdownError
from bluecomm.ops.refusal import refuse, told
from bluecomm.ops.send import tell_receiver
from bluecomm.ops.tensor import dtype_word, span
from bluecomm.runtime import Communicator, Handle, parameters
from bluecomm.runtime.call import NO_MEMORY, Call, Span
from bluecomm.runtime.call_names import UNNAMED
from bluecomm.torch_backend import flight_dump, profiling
from bluecomm.torch_backend.compat import is_async
from bluecomm.torch_backend.ddp_buckets import DdpBuckets
from bluecomm.torch_backend.device_call import (
    Facts,
    begin,
    check_source,
    device_call,
    message_call,
)
from bluecomm.torch_backend.flight_record import Entry, FlightRecord, Message
from bluecomm.torch_backend.other_backends import OtherBackends
from bluecomm.torch_backend.staged import Destination, stage, staging_for
from bluecomm.torch_backend.tensors import done, spans
from bluecomm.torch_backend.work import GroupWork, wait_for

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
        self._other_backends = OtherBackends(self)
        # Threads may share a group if they take turns.
        self._counting = threading.Lock()
        self._calls = 0
        self._sequence = 0
        self._compares_shapes = get_debug_level() == DebugLevel.DETAIL
        # Numbers of the latest messages through NCCL, by their ends and tag.
        self._messages: collections.Counter[tuple[int, int, int]] = (
            collections.Counter()
        )
        # The staging of the latest call with tensors on a device.
        self._device: Staging | None = None
        # The work of the calls between the two hooks of Coalescing.
        self._collected: GroupWork | None = None
        shares = communicator.world.config.share_ddp_buckets
        self._buckets = DdpBuckets() if shares else None
        self._flight = flight_dump.asked_for(os.environ, communicator.world.rank)
        # torch sets both.
        self._name = ""
        self._description = ""

    def leave_buckets(self) -> None:
        """Leave the buckets of DDP in the memory that torch has allocated."""
        self._buckets = None

    @property
    def _survives(self) -> bool:
        """Whether calls are repeated among the ranks that are left after a loss."""
        return self._comm.keeps_input("allreduce")

    def _kept(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the input of a call in place: a copy if the call may be repeated.

        The copy of a tensor on a device is the one on the host.
        """
        if not self._survives or staging_of(memory) is not None:
            return memory
        copy = None if self._buckets is None else self._buckets.copy_of(memory)
        return memory.detach().clone() if copy is None else copy

    def _other(self, method: str, tensors: object) -> Callable[..., Any] | None:
        """Return the method of another backend that serves these tensors, or None.

        Raises:
            RuntimeError: This torch does not have the backend.
            ShutdownError: The group, which has other backends, has been destroyed.
        """
        if not self._other_backends.names:
            return None
        self._check_open(method)
        return self._other_backends.method_for(method, tensors)

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

    def _check_rank(self, operation: str, rank: int) -> None:
        """Raise unless a root, sender or receiver is a member.

        Raises:
            ValueError: It is not.
        """
        if not 0 <= rank < self._comm.size:
            raise ValueError(
                f"{operation}: invalid rank {rank}: the group has {self._comm.size} "
                "ranks"
            )

    def _limit_s(self, options: Any) -> float | None:
        """Return the deadline of a call; torch gives -1 ms for none."""
        timeout: datetime.timedelta | None = getattr(options, "timeout", None)
        if timeout is None or timeout.days < 0:
            return self._timeout_s
        return timeout.total_seconds()

    @property
    def _device_limit_s(self) -> float:
        """How long the host waits for a device, in seconds."""
        if self._timeout_s is not None:
            return self._timeout_s
        return self._comm.world.config.operation_timeout_s

    def _shape(self, tensor: torch.Tensor) -> Sequence[int]:
        """Return the shape that the ranks compare.

        As with torch's own backends, ranks may pass other shapes with as many elements,
        unless TORCH_DISTRIBUTED_DEBUG is DETAIL.
        """
        return tensor.shape if self._compares_shapes else (tensor.numel(),)

    def _call(
        self,
        kind: str,
        dtype: str,
        shape: Sequence[int],
        source: torch.Tensor | None,
        destination: Destination,
        *,
        parts: Sequence[int] | None = None,
        parameters: Any = None,
        finish: Callable[[int], None] = done,
    ) -> Call[None]:
        """Return a call of the engine on contiguous memory.

        A stacked result may have one tensor for the rows of each rank, or one tensor
        that has ``parts[n]`` elements for those of rank ``n``. The memory may be on a
        device.

        Raises:
            ValueError: The memory is on different devices, or on a wrong one.
        """
        keep, gate, back = (source, destination), None, None
        staging = self._staging_for(kind, source, destination)
        if staging is not None:
            on_device = device_call(
                self._comm,
                staging,
                Facts(kind, dtype, shape, parameters),
                source,
                destination,
                parts,
                finish,
            )
            if on_device is not None:
                return on_device
            copy, destination, finish, back = stage(
                staging, source, destination, finish
            )
            if copy is not None:
                source, gate = copy
        there: Span | list[Span] = NO_MEMORY
        if isinstance(destination, torch.Tensor):
            there = span(destination) if parts is None else spans(destination, parts)
        elif destination is not None:
            there = [span(tensor) for tensor in destination]
        call = Call(
            kind,
            dtype,
            shape,
            NO_MEMORY if source is None else span(source),
            there,
            (*keep, source, destination),
            finish,
        )
        call.parameters = parameters
        call.gate = gate
        if parts is None and not self._comm.is_repeated:
            call.parts = back
        return call

    def _staging_for(
        self, kind: str, source: torch.Tensor | None, destination: Destination
    ) -> Staging | None:
        """Return what copies the memory of a call; None for memory of the host."""
        tensors = [] if source is None else [source]
        if isinstance(destination, torch.Tensor):
            tensors.append(destination)
        elif destination is not None:
            tensors += destination
        bound: torch.device | None = getattr(self, "bound_device_id", None)
        staging = staging_for(kind, self._comm.world, tensors, bound)
        self._device = staging or self._device
        return staging

    def _message(
        self,
        kind: str,
        tensor: torch.Tensor,
        peer: int,
        tag: int,
        finish: Callable[[int], None] = done,
    ) -> Call[None]:
        """Return a call that sends or receives contiguous memory.

        Args:
            kind: ``send`` or ``recv``.
            tensor: The memory, which may be on a device.
            peer: The other member; below 0 for a receive from any.
            tag: Tag of the message.
            finish: End of the call.

        Raises:
            RuntimeError: A receive from any member would have to go through NCCL.
            ValueError: The memory is on a wrong device.
        """
        comm, sends, dtype = self._comm, kind == "send", dtype_word(tensor.dtype, kind)
        given = (tensor, None) if sends else (None, tensor)
        staging = self._staging_for(kind, *given)
        if staging is not None and peer < 0:
            check_source(comm, staging, kind)
        elif staging is not None:
            ends = (comm.rank, peer) if sends else (peer, comm.rank)
            through_nccl = message_call(comm, staging, tensor, dtype, *ends, finish)
            if through_nccl is not None:
                sender, receiver = (comm.ranks[one] for one in ends)
                with self._counting:
                    self._messages[(*ends, tag)] += 1
                    number = self._messages[(*ends, tag)] % _NAMES
                through_nccl.name = (
                    f"message {number} of tag {tag} from rank {sender} to rank "
                    f"{receiver}, between GPUs"
                )
                return through_nccl
        try:
            call = self._call(
                kind,
                dtype,
                (tensor.numel(),),
                *given,
                parameters=parameters(peer=peer, tag=tag),
                finish=finish,
            )
        except (RuntimeError, MemoryError) as error:
            if sends:
                tell_receiver(comm, peer, tag, error)
            raise
        other = "any rank" if peer < 0 else f"rank {comm.ranks[peer]}"
        call.name = f"{'to' if sends else 'from'} {other}, tag {tag}"
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
        waits = not is_async(options)
        limit_s = self._limit_s(options)
        name, sequence = self._count()

        is_blocking = waits and len(calls) == 1 and self._collected is None

        def start() -> list[Handle[None]]:
            handles = []
            for index, call in enumerate(calls):
                call.name = f"{name}.{index}" if index else name
                call.timeout_s = limit_s
                call.blocking = is_blocking and call.parts is None
                handles.append(begin(self._comm, call))
            return handles

        if self._flight is None:
            return self._launch(operation, start, outputs, waits=waits)
        entry = self._begin_entry(self._flight, sequence, operation, calls)
        with _noted(entry):
            work = self._launch(operation, start, outputs, waits=waits)
        if work is None:
            entry.end(None)
        else:
            work.record(entry)
        return work

    def _run_message(
        self,
        operation: str,
        call: Call[None],
        tensors: list[torch.Tensor],
        tag: int,
        source: int,
        destination: int,
    ) -> GroupWork | None:
        """Start a send or a receive between two ranks of the group.

        Args:
            operation: torch's name of the call.
            call: The engine's operation.
            tensors: Value of the work's future.
            tag: Tag of the message.
            source: Sender; below 0 for any.
            destination: Receiver.
        """
        call.timeout_s = self._timeout_s

        def start() -> list[Handle[None]]:
            return [begin(self._comm, call)]

        if self._flight is None:
            return self._launch(operation, start, tensors, waits=False)
        ranks = self._comm.ranks
        entry = self._flight.begin_message(
            self._name,
            self._description,
            ranks,
            "send" if source == self._comm.rank else "recv",
            [call],
            Message(None if source < 0 else ranks[source], ranks[destination], tag),
        )
        with _noted(entry):
            work = self._launch(operation, start, tensors, waits=False)
        if work is not None:
            work.record(entry)
        return work

    def _refuse(self, kind: str, error: Exception, operation: str = "") -> None:
        """Count a collective that this rank refuses, and tell the other ranks."""
        name, sequence = self._count()
        refuse(self._comm, [(kind, name, None)], error)
        if self._flight is not None:
            self._begin_entry(self._flight, sequence, operation or kind, []).end(error)

    def _begin_entry(
        self,
        flight: FlightRecord,
        sequence: int,
        operation: str,
        calls: Sequence[Call[None]],
    ) -> Entry:
        """Note a collective that has been counted."""
        return flight.begin(
            self._name,
            self._description,
            self._comm.ranks,
            sequence,
            operation,
            calls,
        )

    def _restart_counts(self) -> None:
        """Count the collectives of new members."""
        with self._counting:
            self._calls = self._sequence = 0
            self._messages.clear()

    def _count(self) -> tuple[str, int]:
        """Count a collective; return its first operation's name, and its number."""
        with self._counting:
            self._calls += 1
            self._sequence += 1
            return f"torch{UNNAMED}{self._calls % _NAMES}", self._sequence

    def _launch(
        self,
        operation: str,
        start: Callable[[], list[Handle[None]]],
        outputs: list[torch.Tensor],
        *,
        waits: bool,
    ) -> GroupWork | None:
        """Start operations of a counted call, in a profiler's range if one is on.

        Args:
            operation: torch's name of the call.
            start: Starts the operations.
            outputs: Value of the work's future.
            waits: Whether to wait for the operations.

        Returns:
            Work of the operations; None if they have been waited for.
        """
        self._check_open(operation)
        try:
            if not profiling.is_on():
                return self._started(start, outputs, waits)
            return self._launch_profiled(operation, start, outputs, waits)
        except Exception as error:
            told(error)  # the call has been counted
            raise

    def _launch_profiled(
        self,
        operation: str,
        start: Callable[[], list[Handle[None]]],
        outputs: list[torch.Tensor],
        waits: bool,
    ) -> GroupWork | None:
        if waits:
            with profiling.call_range(operation, outputs):
                return self._started(start, outputs, waits)
        recorded = profiling.WorkRange(operation, outputs)
        work = None
        try:
            work = self._started(start, outputs, waits)
        finally:
            recorded.end_with(work)
        return work

    def _started(
        self,
        start: Callable[[], list[Handle[None]]],
        outputs: list[torch.Tensor],
        waits: bool,
    ) -> GroupWork | None:
        handles = start()
        if waits and len(handles) == 1:
            wait_for(handles[0])
            return None
        work = GroupWork(handles, outputs)
        if not waits:
            return work
        work.wait()
        return None


@contextlib.contextmanager
def _noted(entry: Entry) -> Iterator[None]:
    """Note the error of a call that does not start, or is waited for."""
    try:
        yield
    except BaseException as error:
        entry.end(error)
        raise
