"""Averages the gradients of a bucket, sent as codes of one byte per value.

Each rank owns one piece of the flat gradients. It receives the codes of its piece from
all ranks, decodes and adds them, and sends the codes of the result to all ranks. Each
rank, also the owner, uses what these codes say, so all ranks get the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from bfrun.wording import format_ranks
from bluecomm.compression import Codec
from bluecomm.ops.allgather import allgather_nonblocking
from bluecomm.ops.alltoall import alltoall_nonblocking
from bluecomm.ops.reduce_op import Average
from bluecomm.ops.refusal import Operation, refuse, told
from bluecomm.ops.tensor import shared_empty
from bluecomm.optim.algorithm import Context, wait_for
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.runtime import Handle

# Codes begin at a multiple of it.
_ALIGNMENT_NBYTES = 32
# The state of a parameter's gradient in the head of a message. 0: there is none.
_SPARSE = 2


class CodedGradients:
    """The exchanges of one bucket's gradients, in two halves.

    The first half sends pieces: a message to each rank begins with a head, which says
    whether the sender has data, and for each parameter whether it has a gradient. The
    codes of the receiver's piece follow. The second half sends the owners' results.

    Values of all types are converted to float32 before they are encoded, and back after
    the last decoding.

    Args:
        context: The optimizer; its world has at least two ranks.
        bucket: The bucket, to which this gives memory for gradients.
        codec: The codec, which encodes float32.
    """

    def __init__(self, context: Context, bucket: Bucket, codec: Codec) -> None:
        as_dense = context.options.sparse_as_dense
        bucket.lay_out_gradients(0, sparse=None if as_dense else ())
        self._context = context
        self._bucket = bucket
        self._codec = codec
        self._gradients = gradients = bucket.gradients
        self._paddings = list(_paddings(bucket))
        size, numel = context.comm.size, gradients.values.numel()
        share = -(-numel // size)
        self._counts = [min(share, max(0, numel - k * share)) for k in range(size)]
        self._mine = self._counts[context.comm.rank]
        self._nbytes = [codec.encoded_nbytes(k, torch.float32) for k in self._counts]
        head = 1 + len(bucket.slots)
        self._head = -(-head // _ALIGNMENT_NBYTES) * _ALIGNMENT_NBYTES
        # Operations in shared memory read and write these without a copy.
        self._lengths = [self._head + nbytes for nbytes in self._nbytes]
        own = self._nbytes[context.comm.rank]
        self._sent = shared_empty(sum(self._lengths), torch.uint8).zero_()
        self._received = shared_empty(size * (self._head + own), torch.uint8)
        self._own_codes = shared_empty(own, torch.uint8)
        self._codes = shared_empty(sum(self._nbytes), torch.uint8)

    def start_pieces(self, *, is_active: bool) -> Handle[Any]:
        """Encode the flat gradients and start the first half.

        Args:
            is_active: Whether this rank has data.
        """
        head = torch.zeros(self._head, dtype=torch.uint8)
        head[0] = is_active
        flags = self._gradients.flags + self._gradients.sparse_flags
        head[1 : 1 + len(flags)] = flags
        pieces = torch.split(self._gradients.values.float(), self._counts)
        messages = torch.split(self._sent, self._lengths)
        for piece, message in zip(pieces, messages, strict=True):
            message[: self._head] = head
            if piece.numel():
                self._codec.encode(piece, message[self._head :])
        return alltoall_nonblocking(
            self._sent,
            self._lengths,
            self._names[0],
            process_set=self._context.comm,
            out=self._received,
        )

    def start_results(
        self, first_half: Handle[Any]
    ) -> tuple[int, Handle[torch.Tensor] | None]:
        """Wait for the first half, combine this rank's piece, start the second half.

        Returns:
            The number of ranks with data; and the second half, which there is only if
            some rank has data.

        Raises:
            ValueError: A gradient is sparse on some rank; raised on all ranks.
            BluecommError: The first half failed. The second one is refused.
        """
        try:
            wait_for(first_half)
        except Exception as error:
            refuse(self._context.comm, [self._second_operation], error)
            raise
        messages = self._received.view(self._context.comm.size, -1)
        states = messages[:, 1 : 1 + len(self._bucket.slots)]
        self._check_dense(states)
        self._gradients.flags.copy_(states.amax(0))
        active = int(messages[:, 0].sum())
        if not active:
            return 0, None
        if self._mine:
            total, value = torch.empty(2, self._mine, dtype=torch.float32)
            for number, message in enumerate(messages):
                into = value if number else total
                self._codec.decode(message[self._head :], into)
                if number:
                    total += value
            if self._context.options.op is Average:
                total /= active
            self._codec.encode(total, self._own_codes)
        handle = allgather_nonblocking(
            self._own_codes,
            self._names[1],
            process_set=self._context.comm,
            out=self._codes,
        )
        return active, handle

    def finish(self) -> None:
        """Decode the results, once the second half has ended, and hand them out."""
        values = self._gradients.values
        decoded = values if values.dtype == torch.float32 else values.float()
        pieces = torch.split(decoded, self._counts)
        parts = torch.split(self._codes, self._nbytes)
        for piece, codes in zip(pieces, parts, strict=True):
            if piece.numel():
                self._codec.decode(codes, piece)
        if decoded is not values:
            values.copy_(decoded)
        for padding in self._paddings:
            padding.zero_()  # a NaN would reach the next round
        self._gradients.hand_out()

    def refused(self) -> Iterator[Operation]:
        """Describe the exchanges of a round that are not started."""
        yield "alltoall", self._names[0], None
        yield self._second_operation

    @property
    def _names(self) -> tuple[str, str]:
        """Names of the operations of the two halves."""
        return f"{self._bucket.name}.pieces", f"{self._bucket.name}.results"

    @property
    def _second_operation(self) -> Operation:
        return "allgather", self._names[1], None

    def _check_dense(self, states: torch.Tensor) -> None:
        """Raise if a gradient is sparse.

        Args:
            states: States of the gradients; shape ``(ranks, parameters)``.
        """
        if int(states.max()) < _SPARSE:
            return
        position = int(states.amax(0).argmax())
        ranks = [
            rank
            for rank, state in zip(
                self._context.comm.ranks, states[:, position].tolist(), strict=True
            )
            if state == _SPARSE
        ]
        # All ranks see this in the same round.
        raise told(
            sparse_error(
                self._bucket.slots[position].name,
                f" on {format_ranks(ranks, noun=True)}",
            )
        )


def sparse_error(name: str, where: str = "") -> ValueError:
    """Return the error for a parameter with a sparse gradient."""
    return ValueError(
        f"DistributedOptimizer: bytegrad needs dense gradients, and that of {name!r} "
        f"is sparse{where}; pass sparse_as_dense=True, or use gradient_allreduce"
    )


def _paddings(bucket: Bucket) -> Iterator[torch.Tensor]:
    """Return the parts of the flat gradients that belong to no parameter."""
    lengths = bucket.gradients.lengths
    ends = itertools.accumulate(lengths)
    for slot, length, end in zip(bucket.slots, lengths, ends, strict=True):
        padding = bucket.gradients.values[end - length + slot.shape.numel() : end]
        if padding.numel():
            yield padding
