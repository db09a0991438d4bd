"""An allreduce whose values are sent as codes: an alltoall, then an allgather.

Each rank owns one piece of the values. It receives the codes of its piece from all
ranks, decodes and adds them in float32, in order of rank, and sends the codes of the
result to all ranks. Each rank, also the owner, decodes the result from these codes, so
all ranks get the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from bluecomm.device.staging import Staging
from bluecomm.ops.coded_pieces import CodedPieces
from bluecomm.ops.forms import NONBLOCKING, Form
from bluecomm.ops.refusal import Operation, is_marked, refuse
from bluecomm.ops.start import start_gather
from bluecomm.ops.tensor import shared_empty
from bluecomm.runtime import Communicator, Handle, parameters
from bluecomm.runtime.chained_handle import ChainedHandle
from bluecomm.runtime.handle import DoneHandle, MappedHandle

if TYPE_CHECKING:
    from bluecomm._native import Gate

# Takes the heads of all ranks' messages, shape ``(ranks, head_nbytes)``, and returns
# the divisor of the sum; 0 if the ranks need no result. Called once all heads have
# arrived. If it raises an error, it must do so on all ranks.
Divisor = Callable[[torch.Tensor], int]


class CodedExchange:
    """An allreduce of a fixed size, in two halves; its rounds follow one another.

    A message of the first half begins with a head, which the caller makes and which is
    not encoded. A message of the second half begins with a byte, which is 1 if the
    owner could not encode its result.

    Attributes:
        is_finite: Whether all owners could encode their results of the last round.

    Args:
        comm: Ranks that take part, at least two.
        name: Prefix of the names of the two operations, which no other exchange has
            that may be under way: ranks start second halves in different orders.
        pieces: Encodes, adds and decodes the values.
        staging: The device that encodes the values and decodes the results; see
            ``start_on_device``. ``None``: the host does. The sums are always added on
            the host.
        first_name: Name of the first operation, if not made from the prefix.
    """

    def __init__(
        self,
        comm: Communicator,
        name: str,
        pieces: CodedPieces,
        staging: Staging | None = None,
        first_name: str | None = None,
    ) -> None:
        self._comm = comm
        self._staging = staging
        self._names = first_name or f"{name}.pieces", f"{name}.results"
        self._pieces = pieces
        # Operations in shared memory read these without a copy.
        nbytes = sum(self._pieces.message_nbytes)
        self._sent = shared_empty(nbytes, torch.uint8).zero_()
        own_nbytes = self._pieces.result_nbytes[comm.rank]
        self._own_result = shared_empty(own_nbytes, torch.uint8).zero_()
        starts = itertools.accumulate(self._pieces.result_nbytes[:-1], initial=0)
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
        nbytes = sum(self._pieces.message_nbytes)
        messages = values.new_zeros(nbytes, dtype=torch.uint8)
        self._pieces.encode(values, messages)
        self._pieces.write_heads(messages, head)
        self._sent, gate = self._staging.to_host(messages)
        return self._start(divisor, None, NONBLOCKING, None, None, gate)

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
            self._pieces.decode(self._staging.to_device(results), into)

    def encode(self, values: torch.Tensor) -> bool:
        """Encode the values of a round, once the one before has ended.

        Args:
            values: The values; flat, of a floating-point type.

        Returns:
            Whether all of them are finite.
        """
        return bool(self._pieces.encode(values, self._sent))

    def start(
        self,
        head: torch.Tensor,
        divisor: Divisor,
        into: torch.Tensor,
        form: Form = NONBLOCKING,
        timeout_s: float | None = None,
        meanwhile: Callable[[], object] | None = None,
        *,
        follows: bool = False,
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
            follows: Whether another round of the same operation has begun before.

        Returns:
            Handle of the divisor. The first half fails with the error of the alltoall,
            or that of ``divisor``, and then the second one is not started.
        """
        self._pieces.write_heads(self._sent, head)
        return self._start(divisor, into, form, timeout_s, meanwhile, None, follows)

    def _start(
        self,
        divisor: Divisor,
        into: torch.Tensor | None,
        form: Form,
        timeout_s: float | None,
        meanwhile: Callable[[], object] | None,
        gate: Gate | None,
        follows: bool = False,
    ) -> Handle[int]:
        """Start the first half, whose messages are whole when the gate opens.

        Args:
            divisor: As in ``start``.
            into: As in ``start``; ``None`` if the device decodes the results.
            form: As in ``start``.
            timeout_s: As in ``start``.
            meanwhile: As in ``start``.
            gate: The gate; ``None`` if the messages are whole already.
            follows: As in ``start``.
        """
        self._has_second_half = False
        self.is_finite = True
        try:
            first = start_gather(
                self._comm,
                "alltoall",
                self._sent,
                form,
                name=self._names[0],
                timeout_s=timeout_s,
                parameters=parameters(splits=tuple(self._pieces.message_nbytes)),
                gate=gate,
                follows=follows,
            )
        except Exception as error:
            if is_marked(error):  # the first half has been refused
                refuse(self._comm, [self.second_operation], error)
            raise

        if meanwhile is not None:
            meanwhile()

        def start_results(received: tuple[torch.Tensor, list[int]]) -> Handle[Any]:
            number = divisor(self._pieces.heads_in(torch.split(*received)))
            if not number:
                return DoneHandle(None)
            self._pieces.combine(received[0], number, self._own_result)
            self._has_second_half = True
            second = start_gather(
                self._comm,
                "allgather",
                self._own_result,
                form,
                name=self._names[1],
                timeout_s=timeout_s,
                out=self._memory_of_results(),
                follows=True,
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
                self._pieces.decode(results, into)
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

    def _memory_of_results(self) -> torch.Tensor | None:
        """Return memory that copies fast to the device; ``None`` if there is none."""
        if self._staging is None:
            return None
        nbytes = sum(self._pieces.result_nbytes)
        return self._staging.empty_on_host((nbytes,), torch.uint8)
