"""An allreduce whose values are sent as codes: an alltoall, then an allgather.

Each rank owns one piece of the values. It receives the codes of its piece from all
ranks, decodes and adds them in float32, in order of rank, and sends the codes of the
result to all ranks. Each rank, also the owner, decodes the result from these codes, so
all ranks get the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from bluecomm.compression import Codec, ErrorFeedback
from bluecomm.compression.codec import Pieces
from bluecomm.device.staging import Staging
from bluecomm.ops.forms import NONBLOCKING, Form
from bluecomm.ops.refusal import Operation, is_marked, refuse
from bluecomm.ops.start import start_gather
from bluecomm.ops.tensor import shared_empty
from bluecomm.runtime import Communicator, Handle, parameters
from bluecomm.runtime.chained_handle import ChainedHandle
from bluecomm.runtime.handle import DoneHandle, MappedHandle

if TYPE_CHECKING:
    from bluecomm._native import Gate

# Codes begin at a multiple of this number.
_ALIGNMENT_NBYTES = 32

# Takes the heads of all ranks' messages, shape ``(ranks, head_nbytes)``, and returns
# the divisor of the sum; 0 if the ranks need no result. Called once all heads have
# arrived. If it raises an error, it must do so on all ranks.
Divisor = Callable[[torch.Tensor], int]


def pieces_of(numel: int, codec: Codec, size: int) -> tuple[list[int], list[int]]:
    """Return the number of values of each rank's piece, and of the bytes of its code.

    Raises:
        ValueError: The codec does not encode pieces of this length.
    """
    share = -(-numel // size)
    counts = [min(share, max(0, numel - k * share)) for k in range(size)]
    return counts, [codec.encoded_nbytes(count, torch.float32) for count in counts]


class CodedExchange:
    """An allreduce of a fixed size, in two halves; its rounds follow one another.

    A message of the first half begins with a head, which the caller makes and which is
    not encoded. A message of the second half begins with a byte, which is 1 if the
    owner could not encode its result.

    Attributes:
        is_finite: Whether all owners could encode their results of the last round.

    Args:
        comm: Ranks that take part, at least two.
        name: Prefix of the names of the two operations.
        numel: Number of values.
        codec: The codec, which encodes float32.
        head_nbytes: Bytes of a head.
        feedback: Adds what codes lose to the values of the next round; for each piece
            that this rank sends, and for the result that it owns. ``None``: it is lost.
        staging: The device that encodes the values and decodes the results; see
            ``start_on_device``. ``None``: the host does. The sums are always added on
            the host.
    """

    def __init__(
        self,
        comm: Communicator,
        name: str,
        numel: int,
        codec: Codec,
        head_nbytes: int = 0,
        feedback: ErrorFeedback | None = None,
        staging: Staging | None = None,
    ) -> None:
        self._comm = comm
        self._staging = staging
        self._names = f"{name}.pieces", f"{name}.results"
        self._codec = codec
        self._feedback = feedback
        self._counts, self._nbytes = pieces_of(numel, codec, comm.size)
        self._share = max(1, self._counts[0])
        self._head_nbytes = head_nbytes
        self._head = -(-head_nbytes // _ALIGNMENT_NBYTES) * _ALIGNMENT_NBYTES
        # Operations in shared memory read these without a copy.
        self._lengths = [self._head + nbytes for nbytes in self._nbytes]
        self._sent = shared_empty(sum(self._lengths), torch.uint8).zero_()
        self._result_lengths = [_ALIGNMENT_NBYTES + one for one in self._nbytes]
        own_nbytes = self._result_lengths[comm.rank]
        self._own_result = shared_empty(own_nbytes, torch.uint8).zero_()
        starts = itertools.accumulate(self._result_lengths[:-1], initial=0)
        self._result_starts = torch.tensor(list(starts))
        self.is_finite = True
        self._has_second_half = False
        # Results of a round that a device will decode.
        self._results: torch.Tensor | None = None

    def start_on_device(
        self, values: torch.Tensor, head: torch.Tensor, divisor: Divisor
    ) -> Handle[int]:
        """Encode values on the device, and start a round that sends their codes.

        The host does not wait for the device: the first half has a gate, which opens
        when the messages are in page-locked memory. Later work of the current stream
        may change the values. ``take_results`` decodes the results.

        Args:
            values: The values on the device; flat, float32.
            head: The head of this rank's messages, on the device; ``torch.uint8``.
            divisor: As in ``start``.

        Returns:
            As ``start`` does.

        Raises:
            RuntimeError: As in ``Staging.to_host``. The other ranks are not told.
        """
        assert self._staging is not None
        messages = values.new_zeros(sum(self._lengths), dtype=torch.uint8)
        self._start_encode(values, messages)
        for equal in _equal_rows(messages, self._lengths):
            equal[:, : self._head_nbytes].copy_(head)
        self._sent, gate = self._staging.to_host(messages)
        return self._start(divisor, None, NONBLOCKING, None, None, gate)

    def _start_encode(self, values: torch.Tensor, into: torch.Tensor) -> None:
        """Encode float32 values on the device, behind the heads of the messages."""
        if self._feedback is None:
            layout = Pieces(self._share, self._lengths[0], self._head)
            self._codec.start_encode_pieces(values, into, layout)
            return
        pieces = torch.split(values, self._counts)
        messages = torch.split(into, self._lengths)
        for rank, (piece, message) in enumerate(zip(pieces, messages, strict=True)):
            if piece.numel():
                self._feedback.start_encode(
                    self._codec, _name_of_piece(rank), piece, message[self._head :]
                )

    def take_results(self, into: torch.Tensor) -> None:
        """Decode the results of a round on the device, once the round has ended.

        The host does not wait for the device.

        Args:
            into: Where the values go, on the device; flat, of a floating-point type.
                Unchanged if the ranks needed no result.

        Raises:
            RuntimeError: As in ``Staging.to_host``.
        """
        assert self._staging is not None
        results, self._results = self._results, None
        if results is not None:
            self._decode(self._staging.to_device(results), into)

    def encode(self, values: torch.Tensor) -> bool:
        """Encode the values of a round, once the one before has ended.

        Args:
            values: The values; flat, of a floating-point type.

        Returns:
            Whether all of them are finite.
        """
        if self._feedback is None:
            layout = Pieces(self._share, self._lengths[0], self._head)
            return self._codec.encode_pieces(values.float(), self._sent, layout)
        are_finite = True
        pieces = torch.split(values, self._counts)
        messages = torch.split(self._sent, self._lengths)
        for rank, (piece, message) in enumerate(zip(pieces, messages, strict=True)):
            if piece.numel():
                codes = message[self._head :]
                are_finite &= self._encode(_name_of_piece(rank), piece.float(), codes)
        return are_finite

    def start(
        self,
        head: torch.Tensor,
        divisor: Divisor,
        into: torch.Tensor,
        form: Form = NONBLOCKING,
        timeout_s: float | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> Handle[int]:
        """Start the first half of a round that is encoded; the rest follows by itself.

        Args:
            head: The head of this rank's messages; ``torch.uint8``.
            divisor: Returns the divisor of the sum from all ranks' heads. It may be
                called in another thread.
            into: Where the result goes; flat, of a floating-point type. It may be the
                tensor of the encoded values.
            form: How the operation was called.
            timeout_s: Seconds after which a half fails. Default: the configured
                deadline.
            meanwhile: Called when the first half has started, before ``divisor`` is.
                It must not raise.

        Returns:
            Handle of the divisor. The first half fails with the error of the alltoall,
            or that of ``divisor``, and then the second one is not started.
        """
        for message in torch.split(self._sent, self._lengths):
            message[: self._head_nbytes] = head
        return self._start(divisor, into, form, timeout_s, meanwhile, None)

    def _start(
        self,
        divisor: Divisor,
        into: torch.Tensor | None,
        form: Form,
        timeout_s: float | None,
        meanwhile: Callable[[], object] | None,
        gate: Gate | None,
    ) -> Handle[int]:
        """Start the first half, whose messages are whole when the gate opens.

        Args:
            divisor: As in ``start``.
            into: As in ``start``; ``None`` if the device decodes the results.
            form: As in ``start``.
            timeout_s: As in ``start``.
            meanwhile: As in ``start``.
            gate: The gate; ``None`` if the messages are whole already.
        """
        self._has_second_half = False
        self.is_finite = True
        first = start_gather(
            self._comm,
            "alltoall",
            self._sent,
            form,
            name=self._names[0],
            timeout_s=timeout_s,
            parameters=parameters(splits=tuple(self._lengths)),
            gate=gate,
        )

        if meanwhile is not None:
            meanwhile()

        def start_results(received: tuple[torch.Tensor, list[int]]) -> Handle[Any]:
            messages = torch.split(*received)
            heads = torch.stack([one[: self._head_nbytes] for one in messages])
            number = divisor(heads)
            if not number:
                return DoneHandle(None)
            # All are about the same piece, so they have the same length.
            self._combine(received[0].view(self._comm.size, -1), number)
            self._has_second_half = True
            second = start_gather(
                self._comm,
                "allgather",
                self._own_result,
                form,
                name=self._names[1],
                timeout_s=timeout_s,
                out=self._memory_of_results(),
            )
            return MappedHandle(second, lambda result: (number, result[0]))

        def decode(result: tuple[int, torch.Tensor] | None) -> Handle[int]:
            if result is None:
                return DoneHandle(0)
            number, results = result
            self.is_finite = not bool(results[self._result_starts].any())
            if into is None:
                self._results = results
            else:
                self._decode(results, into)
            return DoneHandle(number)

        return ChainedHandle(
            first,
            start_results,
            decode,
            on_failure=self._give_up,
            in_background=not form.blocking,
        )

    def refused(self) -> Iterator[Operation]:
        """Describe the operations of a round that is not started."""
        yield "alltoall", self._names[0], None
        yield self.second_operation

    @property
    def second_operation(self) -> Operation:
        """The operation of the second half, as ``refused`` describes it."""
        return "allgather", self._names[1], None

    def _give_up(self, error: Exception) -> None:
        """Tell the others that this rank does not start the second half."""
        if not self._has_second_half and not is_marked(error):
            refuse(self._comm, [self.second_operation], error)

    def _combine(self, messages: torch.Tensor, divisor: int) -> None:
        """Encode the sum of this rank's pieces over the divisor."""
        count = self._counts[self._comm.rank]
        if not count:
            return
        own_codes = self._own_result[_ALIGNMENT_NBYTES:]
        if self._feedback is None:
            layout = Pieces(count, messages.shape[1], self._head)
            flat = messages.view(-1)
            well = self._codec.combine(flat, count, divisor, own_codes, layout)
            self._own_result[0] = not well
            return
        total = torch.empty(count, dtype=torch.float32)
        for number, message in enumerate(messages):
            codes = message[self._head :]
            if number:
                self._codec.add(codes, total)
            else:
                self._codec.decode(codes, total)
        if divisor != 1:
            total /= divisor
        self._own_result[0] = not self._encode("result", total, own_codes)

    def _memory_of_results(self) -> torch.Tensor | None:
        """Return memory that copies fast to the device; ``None`` if there is none."""
        if self._staging is None:
            return None
        return self._staging.empty_on_host((sum(self._result_lengths),), torch.uint8)

    def _decode(self, results: torch.Tensor, into: torch.Tensor) -> None:
        """Decode the results of all owners."""
        is_float32 = into.dtype == torch.float32
        decoded = (
            into if is_float32 else into.new_empty(into.shape, dtype=torch.float32)
        )
        layout = Pieces(self._share, self._result_lengths[0])
        self._codec.decode_pieces(results[_ALIGNMENT_NBYTES:], decoded, layout)
        if not is_float32:
            into.copy_(decoded)

    def _encode(self, name: str, values: torch.Tensor, into: torch.Tensor) -> bool:
        """Encode values; return whether they are finite.

        ``name`` selects the error of earlier rounds.
        """
        if self._feedback is None:
            return self._codec.encode(values, into)
        return self._feedback.encode(self._codec, name, values, into)


def _equal_rows(flat: torch.Tensor, lengths: Sequence[int]) -> Iterator[torch.Tensor]:
    """Return the messages of flat memory as matrices, whose rows are equally long."""
    start = 0
    for length, group in itertools.groupby(lengths):
        count = len(list(group))
        yield flat[start : start + count * length].view(count, length)
        start += count * length


def _name_of_piece(rank: int) -> str:
    """Return the name of the piece of a rank, for ``ErrorFeedback``."""
    return f"piece.{rank}"
