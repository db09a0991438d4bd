"""An allreduce on a device whose values are sent as codes, through NCCL.

It gives the bits of ``CodedExchange``. docs/notes/nccl-backend.md has the states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch

from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.point import Point
from bluecomm.device.staging import HostCopy, Staging
from bluecomm.ops.allgather import allgather_by_rank
from bluecomm.ops.coded_exchange import Divisor
from bluecomm.ops.coded_pieces import CodedPieces
from bluecomm.ops.nccl_call import NcclWork, make_nccl_call, offers_nccl, uses_nccl
from bluecomm.ops.nccl_gather import RowExchange
from bluecomm.ops.nccl_messages import Messages
from bluecomm.ops.on_stream import OnStream
from bluecomm.ops.refusal import Operation, is_marked, refuse, refuse_start
from bluecomm.ops.start import start_gather
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.call import Call
from bluecomm.runtime.chained_handle import ChainedHandle
from bluecomm.runtime.handle import DoneHandle, MappedHandle


class NcclCodedExchange:
    """An allreduce of a fixed size, in three operations; its rounds follow one another.

    Heads travel on the host, so that the host knows the divisor without a wait for the
    device. Messages with codes have flags, which the device makes.

    Args:
        comm: Ranks that take part, for which ``sums_through_nccl`` holds.
        name: Prefix of the names of the operations, as in ``CodedExchange``.
        pieces: Encodes, adds and decodes the values, by kernels of the device. Their
            heads are the flags.
        staging: Staging of the device.
        timeout_s: Seconds after which an operation with codes fails. Default: the
            configured deadline.
    """

    def __init__(
        self,
        comm: Communicator,
        name: str,
        pieces: CodedPieces,
        staging: Staging,
        timeout_s: float | None = None,
    ) -> None:
        assert isinstance(staging, CudaStaging)
        self._comm = comm
        self._staging = staging
        self._name = name
        self._timeout_s = timeout_s
        self._pieces = pieces
        # The operations of a round that this rank has neither started nor refused.
        self._left = deque[Operation]()
        # The messages of a round, and the point behind the kernels that write them.
        self._messages: torch.Tensor | None = None
        self._encoded: Point | None = None
        self._results: torch.Tensor | None = None
        # The flags of all messages to this rank, and which owners could not encode.
        self._flags: HostCopy | None = None
        self._faults: HostCopy | None = None

    def encode(self, values: torch.Tensor, flags: torch.Tensor | None = None) -> None:
        """Encode the values of the next round on the device.

        The host does not wait for the device. Later work of the current stream may
        change the values.

        Args:
            values: The values on the device; flat, of a floating-point type.
            flags: The flags in the messages of this rank, on the device.

        Raises:
            RuntimeError: CUDA or a kernel failed. The other ranks are not told.
        """
        self._results = self._flags = self._faults = None
        pieces = self._pieces
        nbytes = sum(pieces.message_nbytes)
        messages = values.new_zeros(nbytes, dtype=torch.uint8)
        pieces.encode(values, messages)
        if flags is not None:
            pieces.write_heads(messages, flags)
        self._messages, self._encoded = messages, self._staging.point()

    def start(
        self,
        values: torch.Tensor,
        head: torch.Tensor,
        flags: torch.Tensor,
        divisor: Divisor,
    ) -> Handle[int]:
        """Encode values on the device, and start a round with its first operation.

        The other operations follow by themselves. ``take_results`` decodes the results.

        Args:
            values: As for ``encode``.
            head: The head of this rank, on the host; ``torch.uint8``, of the same
                length on all ranks.
            flags: As for ``encode``.
            divisor: Returns the divisor of the sum from all ranks' heads. It may be
                called in another thread.

        Returns:
            Handle of the divisor. The round fails with the error of an operation, or
            that of ``divisor``, and then no further operation is started.

        Raises:
            RuntimeError: CUDA or a kernel failed. The other ranks are told.
        """
        self._left = deque(self.refused())
        try:
            self.encode(values, flags)
            heads = start_gather(
                self._comm, "allgather", head, name=self._left[0][1], timeout_s=None
            )
        except Exception as error:
            if is_marked(error):  # the first operation has been refused
                self._left.popleft()
            self._give_up(error)
            raise
        self._left.popleft()

        def send_codes(gathered: tuple[torch.Tensor, list[int]]) -> Handle[int]:
            number = self._divisor(divisor, gathered[0].view(self._comm.size, -1))
            if number:
                return self._exchange(number)
            self._left.clear()
            return DoneHandle(0)

        return ChainedHandle(heads, send_codes, on_failure=self._give_up)

    def exchange(self, divisor: int) -> Handle[int]:
        """Exchange encoded values, among ranks that know that all have encoded.

        Args:
            divisor: Divisor of the sum.

        Returns:
            As ``start`` does.

        Raises:
            RuntimeError: CUDA or NCCL cannot be used. The other ranks are told.
        """
        self._left = deque(self._codes_and_results())
        return self._exchange(divisor)

    def refuse(self, error: Exception) -> None:
        """Tell the others that this rank does not call ``exchange``."""
        refuse(self._comm, self._codes_and_results(), error)

    def _exchange(self, divisor: int) -> Handle[int]:
        staging, messages = self._staging, self._messages
        assert messages is not None
        self._messages = None
        stream = staging.side_stream_context()
        try:
            with stream:
                staging.follow(self._encoded)
                received, codes = self._send_codes(messages)
        except Exception as error:
            self._give_up(error)
            raise

        def send_results(_: object) -> Handle[int]:
            with stream:
                results, call = self._send_results(received, divisor)

            def keep(_: object) -> int:
                self._results = results
                return divisor

            return MappedHandle(call, keep)

        return ChainedHandle(
            OnStream(codes, stream), send_results, on_failure=self._give_up
        )

    def take_results(self, into: torch.Tensor) -> None:
        """Decode the results of a round on the device, once the round has ended.

        The host does not wait for the device.

        Args:
            into: Where the values go, on the device; flat, of a floating-point type.
                Unchanged if the ranks needed no result.

        Raises:
            RuntimeError: As in ``Staging.to_host``, or a kernel failed.
        """
        results, self._results = self._results, None
        if results is None:
            return
        faults = self._pieces.faults_in(results).contiguous()
        self._faults = self._staging.to_host(faults)
        self._pieces.decode(results, into)
        # The side stream has allocated the results, and does not wait for the decoding.
        self._staging.keep_for_stream(results)

    def flags(self) -> torch.Tensor | None:
        """Return the flags of all ranks' messages, after a wait for the device.

        Returns:
            Shape ``(ranks, flags)``; ``None`` if the ranks needed no result.

        Raises:
            CommunicationTimeout: The device has not computed the flags in time.
            BluecommError: Work on the device failed.
        """
        return self._waited_for(self._flags)

    @property
    def is_finite(self) -> bool:
        """Whether all owners could encode their results; it waits as ``flags`` does."""
        faults = self._waited_for(self._faults)
        return faults is None or not bool(faults.any())

    def refused(self) -> Iterator[Operation]:
        """Describe the operations of a round that is not started."""
        yield "allgather", f"{self._name}.pieces", None
        yield from self._codes_and_results()

    def _codes_and_results(self) -> Iterator[Operation]:
        yield "alltoall", f"{self._name}.codes", None
        yield "allgather", f"{self._name}.results", None

    def _divisor(self, divisor: Divisor, heads: torch.Tensor) -> int:
        try:
            return divisor(heads)
        except Exception as error:
            if is_marked(error):  # all ranks raise it
                self._left.clear()
            raise

    def _send_codes(self, messages: torch.Tensor) -> tuple[torch.Tensor, Handle[None]]:
        """Start to send messages; return the memory of those that come."""
        comm, pieces = self._comm, self._pieces
        own = pieces.message_nbytes[comm.rank]
        received = self._staging.empty((comm.size * own,), torch.uint8)
        work = Messages(
            comm.rank,
            enumerate(torch.split(messages, pieces.message_nbytes)),
            enumerate(received.view(comm.size, own)),
        )
        return received, self._start(work, messages)

    def _send_results(
        self, received: torch.Tensor, divisor: int
    ) -> tuple[torch.Tensor, Handle[None]]:
        """Add codes and start to send the result; return the memory of all results."""
        comm, staging, pieces = self._comm, self._staging, self._pieces
        own = pieces.message_nbytes[comm.rank]
        flags = pieces.heads_in(received.view(comm.size, own))
        if flags.numel():
            self._flags = staging.to_host(flags)
        # All results are equally long, so that ncclAllGather suits.
        nbytes = pieces.result_nbytes[0]
        result = received.new_zeros(nbytes)
        pieces.combine(received, divisor, result)
        results = staging.empty((comm.size * nbytes,), torch.uint8)
        everybody = range(comm.size)
        work = RowExchange(
            *(result, {}, results, everybody, [nbytes] * comm.size),
            gathers=True,
            copies=(),
        )
        return results, self._start(work, result)

    def _start(self, work: NcclWork, sent: torch.Tensor) -> Handle[None]:
        """Start the next operation; tell the other ranks if it cannot start."""
        kind, name, _ = self._left.popleft()
        call: Call[None] | None = None
        try:
            call = make_nccl_call(
                *(self._comm, self._staging, kind, name, "uint8", sent.shape, work),
                _nothing,
                self._timeout_s,
            )
            call.follows = True
            return self._comm.start(call)
        except Exception as error:
            refuse_start(self._comm, kind, name, None, call, error)
            raise

    def _give_up(self, error: Exception) -> None:
        """Tell the others which operations this rank does not start."""
        left, self._left = self._left, deque()
        refuse(self._comm, left, error)

    def _waited_for(self, copy: HostCopy | None) -> torch.Tensor | None:
        if copy is None:
            return None
        copy.wait(self._name, self._comm.world.config.operation_timeout_s)
        return copy.values


def sums_through_nccl(
    comm: Communicator, staging: Staging | None, name: str, *, encodes: bool
) -> bool:
    """Return whether the ranks exchange codes of values on devices through NCCL.

    Collective where NCCL is in use, also for ranks whose values are on the host: all
    ranks must be able to encode.

    Args:
        comm: Ranks that take part.
        staging: Staging of the values' device; ``None`` if they are on the host.
        name: Name of the operation in which ranks tell each other what they can do.
        encodes: Whether the codec's kernels run on this rank's device.
    """
    is_asked = offers_nccl(comm) if staging is None else uses_nccl(comm, staging)
    if not is_asked:
        return False
    told = torch.tensor([encodes], dtype=torch.uint8)
    return all(map(bool, allgather_by_rank(comm, told, name)))


def _nothing(_: int) -> None:
    """End a call that has no result."""
