"""Stacks rows through NCCL: exchanges their numbers on the host, then the rows.

Only the senders know how many rows a rank will get. So an operation of the same kind on
the host, of one number for each message, comes first. When it has ended, the memory of
the result is made, and NCCL's call is started.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from bfrun.wording import format_ranks
from bluecomm.device.staging import Staging
from bluecomm.errors import MismatchError, PeerLostError
from bluecomm.ops.nccl_call import limit_of, make_nccl_call, uses_nccl
from bluecomm.ops.overlaps import apart_from
from bluecomm.ops.refusal import refuse, refuse_start
from bluecomm.ops.tensor import span
from bluecomm.ops.time_budget import TimeBudget
from bluecomm.ops.two_calls import start_two_calls
from bluecomm.runtime import Communicator, Handle, parameters
from bluecomm.runtime.call import NO_MEMORY, Call

if TYPE_CHECKING:
    from bluecomm._native import NcclCall, NcclGroup, NcclQueue, Parameters

# Offset and number of rows.
_Part = tuple[int, int]

_KINDS = frozenset({"allgather", "alltoall", "gather", "neighbor_allgather"})


class RowExchange:
    """Messages with rows for some members, and from some members.

    Args:
        source: Contiguous tensor on the device, whose rows are sent.
        sent: The rows for each member that gets some.
        result: Contiguous tensor for the stacked rows.
        senders: Members whose rows are stacked, in this order.
        rows: Number of rows from each of them.
        gathers: Whether all rows of each member go to all members.
        copies: Tensors that get the rows of each member in the end, if ``result`` is
            memory on the way.

    Attributes:
        result: The stacked rows, once the work is complete.
        rows: Number of rows from each sender that took part.
        gone: Members that did not take part, because they were lost before.
    """

    def __init__(
        self,
        source: torch.Tensor,
        sent: Mapping[int, _Part],
        result: torch.Tensor,
        senders: Sequence[int],
        rows: Sequence[int],
        *,
        gathers: bool,
        copies: Sequence[torch.Tensor],
    ) -> None:
        self._source = source
        self._sent = sent
        self._memory = self.result = result
        self._received = dict(zip(senders, _parts(rows), strict=True))
        self.rows = list(rows)
        self.gone: Collection[int] = ()
        # All members choose alike, because the numbers of rows are the same on all.
        self._is_even = gathers and len(set(rows)) == 1 and source.nbytes > 0
        self._copies = copies

    def make_draft(
        self, queue: NcclQueue, group: NcclGroup, stream: int, limit_s: float
    ) -> NcclCall:
        """See ``NcclWork``."""
        if self._is_even:
            return queue.make_call(
                group=group,
                kind="allgather",
                source=self._source.data_ptr(),
                destination=self._memory.data_ptr(),
                count=self._source.nbytes,
                dtype="uint8",
                op="sum",
                root=0,
                stream=stream,
                limit_s=limit_s,
            )
        return queue.make_exchange(
            group=group,
            sends=_messages(self._source, self._sent),
            receives=_messages(self._memory, self._received),
            stream=stream,
            limit_s=limit_s,
        )

    @torch.no_grad()
    def complete(self, gone: Collection[int]) -> None:
        """Copy the rows to where the caller wants them, without those of lost ranks."""
        self.gone = gone
        if any(member in gone for member in self._received):
            self._close_gaps()
        if self._copies:
            pieces = torch.split(self.result, self.rows)
            for tensor, piece in zip(self._copies, pieces, strict=True):
                tensor.copy_(piece)

    def _close_gaps(self) -> None:
        left = [
            part for member, part in self._received.items() if member not in self.gone
        ]
        self.rows = [count for _, count in left]
        if self._is_even:  # NCCL has stacked them
            self.result = self._memory[: sum(self.rows)]
            return
        pieces = [self._memory[offset : offset + count] for offset, count in left]
        self.result = torch.cat(pieces) if pieces else self._memory[:0]


class NcclGather:
    """One operation whose rows go through NCCL.

    Args:
        comm: Members that take part.
        staging: Staging of the device.
        kind: The engine's name of the operation; see ``gathers_through_nccl``.
        dtype: The engine's name of the element type.
        source: Contiguous tensor on the device.
        given_parameters: Parameters of the operation.
        given: Memory for the result that the caller gave, or an empty list: a tensor
            for all rows, or one for the rows of each member.
        finish: Makes the result from the stacked rows and their numbers.
        timeout_s: Deadline that the caller gave.

    Attributes:
        first: The call that exchanges the numbers of rows.

    Raises:
        RuntimeError: The current stream captures a CUDA graph.
    """

    def __init__(
        self,
        comm: Communicator,
        staging: Staging,
        kind: str,
        dtype: str,
        source: torch.Tensor,
        given_parameters: Parameters | None,
        given: Sequence[torch.Tensor],
        finish: Callable[[torch.Tensor, list[int]], Any],
        timeout_s: float | None,
    ) -> None:
        self._comm = comm
        self._staging = staging
        self._kind = kind
        self._dtype = dtype
        self._source = source
        self._given = given
        self._finish = finish
        self._budget = TimeBudget(limit_of(comm, kind, timeout_s))
        # Raises on a stream that captures a graph, before other ranks get numbers.
        staging.point()
        # The memory of the result belongs to the stream of the start.
        self._stream = staging.stream_context()
        everybody, all_rows = range(comm.size), (0, source.shape[0])
        self._sent: dict[int, _Part] = dict.fromkeys(everybody, all_rows)
        self._senders: Sequence[int] = everybody
        # The parameters of the calls, as far as the ranks compare them.
        self._parameters: Parameters | None = None
        if kind == "alltoall":
            assert given_parameters is not None
            self._sent = dict(enumerate(_parts(given_parameters.splits)))
        elif kind == "gather":
            assert given_parameters is not None
            self._parameters = given_parameters
            self._sent = {given_parameters.root: all_rows}
            self._senders = everybody if comm.rank == given_parameters.root else ()
        elif kind == "neighbor_allgather":
            assert given_parameters is not None
            self._parameters = given_parameters
            destinations = [member for member, _ in given_parameters.destinations]
            self._sent = dict.fromkeys(destinations, all_rows)
            self._senders = [member for member, _ in given_parameters.sources]
        self.first = self._call_of_numbers()

    def begin(self, first: Call[list[int]]) -> Handle[Any]:
        """Start the operation with its first call, whose settings are complete."""
        return start_two_calls(self._comm, self._kind, first, "rows", self._start_rows)

    def _call_of_numbers(self) -> Call[list[int]]:
        is_alltoall = self._kind == "alltoall"
        told = [count for _, count in self._sent.values()]
        numbers = torch.tensor(told if is_alltoall else [self._source.shape[0]])
        # The function does not refer to this object, which refers to the call.
        world, hears = self._comm.world, bool(self._senders)

        def finish(number: int) -> list[int]:
            if not hears:
                return []
            block, told_rows = world.output(number)
            if not told_rows:  # all senders are lost
                return []
            heard: list[int] = torch.frombuffer(block, dtype=torch.int64).tolist()
            return heard

        call = Call(
            self._kind,
            "int64",
            numbers.shape,
            span(numbers),
            NO_MEMORY,
            (numbers,),
            finish,
        )
        call.precedes_ticket = True
        call.has_parts = bool(self._given)
        call.parameters = self._parameters
        if is_alltoall:
            call.parameters = parameters(splits=(1,) * self._comm.size)
        return call

    def _start_rows(self, name: str, blocking: bool, rows: list[int]) -> Handle[Any]:
        """Start NCCL's call when the numbers of rows are known."""
        call: Call[Any] | None = None
        try:
            with self._stream:
                call = self._call_of_rows(name, rows)
                call.blocking = blocking
                return self._comm.start(call)
        except MismatchError as error:
            refuse(self._comm, [(self._kind, name, None)], error)
            raise
        except Exception as error:
            refuse_start(self._comm, self._kind, name, None, call, error)
            raise

    def _call_of_rows(self, name: str, rows: list[int]) -> Call[Any]:
        given, shape = self._given, (sum(rows), *self._source.shape[1:])
        senders = self._senders_left()
        timeout_s = self._budget.left_s()
        copies: Sequence[torch.Tensor] = ()
        if given:
            self._check_given(name, rows)
        source = self._source
        if len(given) == 1:
            result = given[0]
            if not self._is_in_place(result, rows):
                source = apart_from(result, source)
        else:
            result, copies = self._staging.empty(shape, self._source.dtype), given
        work = RowExchange(
            source,
            self._sent,
            result,
            senders,
            rows,
            gathers=self._kind == "allgather",
            copies=copies,
        )
        call = make_nccl_call(
            self._comm,
            self._staging,
            self._kind,
            name,
            self._dtype,
            self._source.shape,
            work,
            lambda _: self._result_of(work, name),
            timeout_s,
        )
        call.has_parts = bool(given)
        call.follows = True
        call.name = name
        call.timeout_s = timeout_s
        call.parameters = self._parameters
        return call

    def _is_in_place(self, result: torch.Tensor, rows: Sequence[int]) -> bool:
        """Return whether NCCL can gather rows that lie at their place in the result."""
        if self._kind != "allgather" or len(set(rows)) > 1:
            return False
        own = result.narrow(0, self._comm.rank * rows[0], rows[0])
        return own.data_ptr() == self._source.data_ptr()

    def _senders_left(self) -> list[int]:
        """Return the members that have told their numbers of rows to this rank."""
        told, ranks = self.first.group, self._comm.ranks
        assert told is not None
        return [member for member in self._senders if ranks[member] in told.ranks]

    def _result_of(self, work: RowExchange, name: str) -> Any:
        """Return the result of complete work.

        Raises:
            PeerLostError: A neighbor of this rank is lost.
        """
        ranks = self._comm.ranks
        if self._kind == "neighbor_allgather":
            neighbors = {ranks[one] for one in (*self._sent, *self._senders)}
            if lost := sorted(
                neighbors.intersection(map(ranks.__getitem__, work.gone))
            ):
                raise PeerLostError.describe(
                    f"this rank exchanges rows with {format_ranks(lost, noun=True)}, "
                    "lost before",
                    operation=self._kind,
                    name=name,
                    rank=self._comm.world.rank,
                    peers=lost,
                    remedy="Pass src_ranks and dst_ranks without lost ranks",
                )
        return self._finish(work.result, work.rows)

    def _check_given(self, name: str, rows: list[int]) -> None:
        """Raise unless the caller's memory suits the rows that will come.

        Raises:
            MismatchError: It does not.
        """
        expected = [sum(rows)] if len(self._given) == 1 else rows
        got = [one.shape[0] for one in self._given]
        if got != expected:
            raise MismatchError.describe(
                "the tensors of out have other numbers of rows than the ranks send",
                operation=self._kind,
                name=name,
                rank=self._comm.world.rank,
                peers=self._comm.ranks,
                expected=str(expected),
                got=str(got),
                remedy="Pass tensors with the numbers of rows that the ranks send",
            )


def gathers_through_nccl(comm: Communicator, staging: Staging, kind: str) -> bool:
    """Return whether NCCL carries out an operation that stacks rows."""
    return kind in _KINDS and uses_nccl(comm, staging)


def _parts(rows: Sequence[int]) -> list[_Part]:
    """Return the parts of a tensor that has these numbers of rows one after another."""
    offsets = itertools.accumulate(rows, initial=0)
    return [(offset, count) for offset, count in zip(offsets, rows, strict=False)]


def _messages(
    tensor: torch.Tensor, parts: Mapping[int, _Part]
) -> list[tuple[int, int, int]]:
    """Return member, address and bytes of the rows of each member that has some."""
    width = tensor.shape[1:].numel() * tensor.element_size()
    return [
        (member, tensor.data_ptr() + offset * width, count * width)
        for member, (offset, count) in parts.items()
        if count * width
    ]
