"""Averages the gradients of a bucket, sent as codes of one byte per value."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from bfrun.wording import format_ranks
from bluecomm.compression import Codec, ErrorFeedback
from bluecomm.compression.device_codes import encodes_there
from bluecomm.device.staging import HostCopy, Staging
from bluecomm.ops.coded_exchange import CodedExchange
from bluecomm.ops.coded_pieces import CodedPieces
from bluecomm.ops.nccl_coded_exchange import NcclCodedExchange, sums_through_nccl
from bluecomm.ops.reduce_op import Average
from bluecomm.ops.refusal import Operation, is_told, refuse, told
from bluecomm.optim.algorithm import Context, wait_for
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.dense_only import sparse_error
from bluecomm.optim.finite import are_not_finite, is_finite
from bluecomm.runtime import Communicator, Handle

# The state of a parameter's gradient in the head of a message. 0: there is none, 1: it
# is dense and finite.
_SPARSE, NOT_FINITE = 2, 3


class CodedGradients:
    """The exchanges of one bucket's gradients.

    The head of a message says whether the sender has data, and for each parameter
    whether it has a gradient. Values of all types are converted to float32 before they
    are encoded, and back after the last decoding.

    Gradients on a device are encoded and decoded there, if the codec's kernels can run,
    and the host never waits for the device. Otherwise the gradients are on their way to
    the host between ``start`` and ``begin``, and the host encodes and decodes.

    Args:
        context: The optimizer; its world has at least two ranks.
        bucket: The bucket, to which this gives memory for gradients.
        codec: The codec, which encodes float32.
        feedback: Adds what codes lose to the values of the next round; for each piece
            that this rank sends, and for the result that it owns. ``None``: it is lost.
        comm: Ranks that exchange codes. Default: those of the optimizer.
        counters: Number of counters behind the flat gradients.
        on_host: Whether gradients of a device are encoded on the host in any case.
    """

    def __init__(
        self,
        context: Context,
        bucket: Bucket,
        codec: Codec,
        feedback: ErrorFeedback | None = None,
        *,
        comm: Communicator | None = None,
        counters: int = 0,
        on_host: bool = False,
    ) -> None:
        as_dense = context.options.sparse_as_dense
        bucket.lay_out_gradients(counters, sparse=None if as_dense else ())
        self._comm = comm or context.comm
        self._context = context
        self._bucket = bucket
        self._gradients = bucket.gradients
        self._paddings = list(_paddings(bucket))
        self._exchange: CodedExchange | NcclCodedExchange | None = None
        self._encodes_there = False
        if self._comm.included and self._comm.size > 1:
            staging = self._gradients.staging
            self._encodes_there = not on_host and encodes_there(
                codec,
                staging,
                self._comm.world.config.device_codes,
                self._comm.world.config.operation_timeout_s,
            )
            self._exchange = self._make_exchange(codec, feedback)
        self._handle: Handle[Any] | None = None
        # Gradients of a device on their way to the host, and the head of their message.
        self._coming: tuple[HostCopy, int, torch.Tensor] | None = None
        # The gradients once they are on the host, and later the result.
        self._on_host: torch.Tensor | None = None
        self._active = 0
        # The senders whose gradient of a parameter was not finite in the last round.
        self._not_finite: dict[int, list[int]] = {}

    def _make_exchange(
        self, codec: Codec, feedback: ErrorFeedback | None
    ) -> CodedExchange | NcclCodedExchange:
        comm, name, slots = self._comm, self._bucket.name, len(self._bucket.slots)
        values, staging = self._gradients.values, self._gradients.staging
        of_values = values.numel(), codec, comm.size, comm.rank
        if sums_through_nccl(
            comm, staging, f"{name}.kernels", encodes=self._encodes_there
        ):
            assert staging is not None
            pieces = CodedPieces(*of_values, slots, feedback)
            return NcclCodedExchange(comm, name, pieces, staging)
        pieces = CodedPieces(*of_values, 1 + slots, feedback)
        there = staging if self._encodes_there else None
        return CodedExchange(comm, name, pieces, there)

    def start(self, *, is_active: bool) -> None:
        """Encode the flat gradients and start an exchange, which goes on by itself.

        The flat values belong to the exchange until ``finish``. If they are on a device
        and the host encodes them, this only copies them to the host, without waiting
        for the device; ``begin`` does the rest.

        Args:
            is_active: Whether this rank has data.

        Raises:
            RuntimeError: CUDA or a kernel failed. The other ranks are told.
        """
        gradients = self._gradients
        states = gradients.flags + gradients.sparse_flags
        if gradients.staging is None:
            self._handle = self._start(int(is_active), states)
        elif self._encodes_there:
            try:
                gradients.follow_streams()
                self._handle = self._start_on_device(int(is_active), states)
            except Exception as error:
                if not is_told(error):
                    refuse(self._comm, list(self.refused()), error)
                raise
        else:
            streams = gradients.take_streams()
            copy = gradients.staging.to_host(gradients.values, after=streams)
            self._coming = copy, int(is_active), states

    def begin(self) -> None:
        """Start the exchange of gradients that the host encodes, once they have come.

        Does nothing for other gradients, whose exchange ``start`` has started. If it
        fails, it tells the other ranks.

        Raises:
            CommunicationTimeout: The device has not computed them in time.
            BluecommError: Work that the program has started on the device failed.
        """
        if self._coming is None:
            return
        (copy, active, states), self._coming = self._coming, None
        limit_s = self._comm.world.config.operation_timeout_s
        try:
            copy.wait(self._bucket.name, limit_s)
        except Exception as error:
            refuse(self._comm, list(self.refused()), error)
            raise
        self._on_host = copy.values
        self._handle = self._start(active, states)

    def finish(self, *, is_active: bool) -> int:
        """Wait for the exchange, and hand out the gradients if this rank has data.

        Returns:
            The number of ranks with data.

        Raises:
            ValueError: A gradient is sparse on some rank; raised on all ranks.
            BluecommError: An operation failed.
        """
        handle, self._handle = self._handle, None
        assert handle is not None
        wait_for(handle)
        self._take_result()
        for padding in self._paddings:
            padding.zero_()  # a NaN would reach the next round
        if is_active:
            self._gradients.hand_out()
        return self._active

    def not_finite(self) -> Iterator[str]:
        """Name the gradients that some ranks have sent as infinities or NaN.

        This leaves out gradients that are finite now because the user has changed them.
        If NCCL carries the codes, this waits until they have arrived on the device.
        """
        if isinstance(self._exchange, NcclCodedExchange):
            self._read_flags(self._exchange.flags())
        for position, ranks in self._not_finite.items():
            slot = self._bucket.slots[position]
            gradient = slot.parameter.grad
            if gradient is not None and not is_finite(gradient):
                yield f"{slot.name!r}{self._where(ranks)}"

    @property
    def is_known_finite(self) -> bool:
        """Whether the last result is known to be finite without a look at its device.

        A shorter type than float32 may turn a finite result into an infinity.
        """
        if not self._encodes_there or self._exchange is None:
            return False
        return self._exchange.is_finite and self._bucket.dtype.itemsize >= 4

    @property
    def is_under_way(self) -> bool:
        """Whether an exchange has been started and not been finished."""
        return self._handle is not None or self._coming is not None

    @property
    def _values(self) -> torch.Tensor:
        """The flat gradients on the host."""
        return self._gradients.values if self._on_host is None else self._on_host

    def refused(self) -> Iterator[Operation]:
        """Describe the operations of a round that is not started."""
        return iter(()) if self._exchange is None else self._exchange.refused()

    def _take_result(self) -> None:
        """Put the result where the gradients are, on the current stream."""
        gradients, values = self._gradients, self._on_host
        if self._encodes_there:
            assert self._exchange is not None
            self._exchange.take_results(gradients.values)
        elif gradients.staging is not None and values is not None:
            gradients.staging.write(gradients.values, values)
            self._on_host = None

    def _start_on_device(self, active: int, states: torch.Tensor) -> Handle[int]:
        """Encode the flat gradients on their device and start their exchange.

        Args:
            active: As in ``_start``.
            states: As in ``_start``, but 1 for all dense gradients.

        Raises:
            RuntimeError: CUDA or a kernel failed.
        """
        exchange, gradients = self._exchange, self._gradients
        assert exchange is not None
        assert gradients.staging is not None
        values = gradients.values.float()
        bad = are_not_finite(torch.split(values, gradients.lengths))
        if isinstance(exchange, NcclCodedExchange):
            return exchange.start(values, _head(active, states), bad, self._divisor)
        head = gradients.staging.to_device(_head(active, states, gradients.staging))
        bad &= head[1:] != _SPARSE
        head[1:].masked_fill_(bad, NOT_FINITE)
        return exchange.start_on_device(values, head, self._divisor)

    def _start(self, active: int, states: torch.Tensor) -> Handle[int]:
        """Encode the flat gradients on the host and start their exchange.

        Args:
            active: Number of ranks with data whose gradients they are the sum of.
            states: For each parameter, the state of its gradient.
        """
        assert isinstance(self._exchange, CodedExchange)
        head = _head(active, states)
        if not self._exchange.encode(self._values):
            self._mark_not_finite(head[1:])
        return self._exchange.start(head, self._divisor, self._values)

    def _mark_not_finite(self, states: torch.Tensor) -> None:
        """Set the states of the dense gradients that are not finite, before a round."""
        parts = torch.split(self._values, self._gradients.lengths)
        for position, part in enumerate(parts):
            if states[position] != _SPARSE and not is_finite(part.float()):
                states[position] = NOT_FINITE

    def _divisor(self, heads: torch.Tensor) -> int:
        """Read the heads of all ranks."""
        states = heads[:, 1:]
        self._check_dense(states)
        self._gradients.flags.copy_(states.amax(0))
        self._read_flags(states == NOT_FINITE)
        self._active = int(heads[:, 0].sum())
        if self._context.options.op is Average:
            return self._active
        return min(1, self._active)

    def _read_flags(self, are_bad: torch.Tensor | None) -> None:
        """Note which gradients are not finite.

        Args:
            are_bad: Shape ``(ranks, parameters)``; ``None`` if there was no exchange.
        """
        self._not_finite = {}
        if are_bad is not None and bool(are_bad.any()):
            for position, senders in enumerate(are_bad.T.to(torch.uint8)):
                if ranks := self._senders(senders, 1):
                    self._not_finite[position] = ranks

    def _check_dense(self, states: torch.Tensor) -> None:
        """Raise if a gradient is sparse.

        Args:
            states: States of the gradients; shape ``(ranks, parameters)``.
        """
        is_sparse = (states == _SPARSE).any(0)
        if not is_sparse.any():
            return
        position = int(is_sparse.to(torch.uint8).argmax())
        ranks = self._senders(states[:, position], _SPARSE)
        # All ranks see this in the same round.
        raise told(
            sparse_error(
                "bytegrad",
                self._bucket.slots[position].name,
                f" on {format_ranks(ranks, noun=True)}",
            )
        )

    def _where(self, senders: list[int]) -> str:
        """Say which ranks' gradients the senders have sent."""
        return f" on {format_ranks(senders, noun=True)}"

    def _senders(self, states: torch.Tensor, state: int) -> list[int]:
        """Return the ranks that have sent a state."""
        of_ranks = zip(self._comm.ranks, states.tolist(), strict=True)
        return [rank for rank, sent in of_ranks if sent == state]


def _head(
    active: int, states: torch.Tensor, staging: Staging | None = None
) -> torch.Tensor:
    """Return the head of a message, in memory that copies fast if given a device."""
    shape = (1 + len(states),)
    if staging is None:
        head = torch.empty(shape, dtype=torch.uint8)
    else:
        head = staging.empty_on_host(shape, torch.uint8)
    head[0] = active
    head[1:] = states
    return head


def _paddings(bucket: Bucket) -> Iterator[torch.Tensor]:
    """Return the parts of the flat gradients that belong to no parameter."""
    lengths = bucket.gradients.lengths
    ends = itertools.accumulate(lengths)
    for slot, length, end in zip(bucket.slots, lengths, ends, strict=True):
        padding = bucket.gradients.values[end - length + slot.shape.numel() : end]
        if padding.numel():
            yield padding
