"""The pieces of an allreduce of codes: encodes, adds and decodes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch

from bluecomm.compression import Codec, ErrorFeedback
from bluecomm.compression.codec import Pieces

# Codes begin at a multiple of this number.
_ALIGNMENT_NBYTES = 32


def pieces_of(numel: int, codec: Codec, size: int) -> tuple[list[int], list[int]]:
    """Return the numbers of values of the ranks' pieces, and of bytes of their codes.

    Raises:
        ValueError: The codec does not encode pieces of this length.
    """
    share = -(-numel // size)
    counts = [min(share, max(0, numel - k * share)) for k in range(size)]
    return counts, [codec.encoded_nbytes(count, torch.float32) for count in counts]


class CodedPieces:
    """One piece of the values for each rank, and the memory of its codes.

    A message has the code of a piece behind a head. A result has the code of a sum
    behind a byte, which is 1 if the owner could not encode the sum. All methods work on
    the device of their tensors, and do not wait for it. Values and bytes are the same
    on all devices.

    Attributes:
        message_nbytes: Bytes of the message to each rank.
        result_nbytes: Bytes of the result of each rank.

    Args:
        numel: Number of values.
        codec: The codec, which encodes float32.
        size: Number of ranks.
        rank: Number of this rank among them, which owns the piece of this number.
        head_nbytes: Bytes of a head.
        feedback: Adds what codes lose to the values of the next round, for each piece
            that this rank sends and for the result that it owns. With ``None`` it is
            lost.
    """

    def __init__(
        self,
        numel: int,
        codec: Codec,
        size: int,
        rank: int,
        head_nbytes: int = 0,
        feedback: ErrorFeedback | None = None,
    ) -> None:
        self._codec = codec
        self._feedback = feedback
        self._counts, nbytes = pieces_of(numel, codec, size)
        self._count, self._code_nbytes = self._counts[rank], nbytes[rank]
        self._share = max(1, self._counts[0])
        self._head_nbytes = head_nbytes
        self._head = -(-head_nbytes // _ALIGNMENT_NBYTES) * _ALIGNMENT_NBYTES
        self.message_nbytes = [self._head + one for one in nbytes]
        self.result_nbytes = [_ALIGNMENT_NBYTES + one for one in nbytes]

    def encode(self, values: torch.Tensor, messages: torch.Tensor) -> torch.Tensor:
        """Encode the values of a round behind the heads of the messages.

        Args:
            values: The values; flat, of a floating-point type.
            messages: Memory of the messages, one after another.

        Returns:
            Whether all values are finite; shape ``()``, ``torch.bool``.
        """
        values = values.float()
        if self._feedback is None:
            layout = Pieces(self._share, self.message_nbytes[0], self._head)
            return self._codec.start_encode_pieces(values, messages, layout)
        well = values.new_ones((), dtype=torch.bool)
        parts = torch.split(messages, self.message_nbytes)
        for rank, piece in enumerate(torch.split(values, self._counts)):
            if piece.numel():
                well &= self._feedback.start_encode(
                    self._codec, f"piece.{rank}", piece, parts[rank][self._head :]
                )
        return well

    def write_heads(self, messages: torch.Tensor, head: torch.Tensor) -> None:
        """Write a head to all messages."""
        for equal in _equal_rows(messages, self.message_nbytes):
            equal[:, : self._head_nbytes].copy_(head)

    def heads_in(self, received: Iterable[torch.Tensor]) -> torch.Tensor:
        """Return the heads of messages, which may have other lengths than expected.

        Returns:
            The heads; shape ``(messages, head_nbytes)``.
        """
        return torch.stack([one[: self._head_nbytes] for one in received])

    def combine(
        self, received: torch.Tensor, divisor: int, result: torch.Tensor
    ) -> None:
        """Add all ranks' codes of this rank's piece, divide the sum, and encode it.

        The sum is formed in float32, in order of the ranks.

        Args:
            received: The messages of all ranks about this rank's piece, one after
                another.
            divisor: The divisor.
            result: Memory of the result, filled with zeros before its first use.
        """
        if not self._count:
            return
        codes = result[_ALIGNMENT_NBYTES : _ALIGNMENT_NBYTES + self._code_nbytes]
        layout = Pieces(self._count, self._head + self._code_nbytes, self._head)
        if self._feedback is None:
            well = self._codec.start_combine(
                received, self._count, divisor, codes, layout
            )
        else:
            total = self._codec.sum_of(received, self._count, divisor, layout)
            well = self._feedback.start_encode(self._codec, "result", total, codes)
        result[:1].copy_(well.logical_not())

    def decode(self, results: torch.Tensor, into: torch.Tensor) -> None:
        """Decode the results of all owners.

        Args:
            results: The results, each at a multiple of ``result_nbytes[0]``.
            into: Where the values go; flat, of a floating-point type.
        """
        is_float32 = into.dtype == torch.float32
        decoded = (
            into if is_float32 else into.new_empty(into.shape, dtype=torch.float32)
        )
        layout = Pieces(self._share, self.result_nbytes[0])
        self._codec.decode_pieces(results[_ALIGNMENT_NBYTES:], decoded, layout)
        if not is_float32:
            into.copy_(decoded)

    def faults_in(self, results: torch.Tensor) -> torch.Tensor:
        """Return for each owner whether it could not encode; see ``decode``."""
        return results[:: self.result_nbytes[0]][: len(self._counts)]


def _equal_rows(flat: torch.Tensor, lengths: Sequence[int]) -> Iterator[torch.Tensor]:
    """Return the messages of flat memory as matrices, whose rows are equally long."""
    start = 0
    for length, group in itertools.groupby(lengths):
        count = len(list(group))
        yield flat[start : start + count * length].view(count, length)
        start += count * length
