"""Sends codes of a bucket's differences to neighbors, and decodes theirs.

Each rank publishes a tensor by its changes: neighbors that have added all changes so
far have a copy that is equal bit by bit, because they decode the same bytes as the
sender does. Copies of different runs or steps would stay wrong without a sign, so a
message says to which state its codes belong.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch

from bluecomm.compression import Codec
from bluecomm.compression.device_codes import encodes_there
from bluecomm.device.staging import values_on_host
from bluecomm.ops.neighbor_allgather import neighbor_allgather_nonblocking
from bluecomm.ops.tensor import shared_empty
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.runtime import Communicator, Handle

# Codes begin at a multiple of this number.
_ALIGNMENT_NBYTES = 32
# The bytes of a ``StateRound`` at the beginning of a message.
_PROGRESS_NBYTES = 16


@dataclasses.dataclass(frozen=True)
class StateRound:
    """Says to which state the codes of a rank belong.

    Attributes:
        run: Random number of the state, drawn when it began.
        rounds: Rounds since it began. The first one sends values instead of codes.
    """

    run: int
    rounds: int


@dataclasses.dataclass(frozen=True)
class PublishedChange:
    """The message of a neighbor, or of this rank, about one bucket.

    Attributes:
        progress: The state to which it belongs.
        not_finite: Positions of the parameters that the codec could not encode. Then
            there are no values.
        values: The values as all ranks decode them, where the differences are.
    """

    progress: StateRound
    not_finite: Sequence[int]
    values: torch.Tensor | None


class CodedDifferences:
    """The exchanges of one bucket's differences with the neighbors.

    Codes are those of float32. The values of the first round are those of parameters,
    so they are sent in the type of the parameters, but at least float32.

    Differences on a device are encoded there, if the codec's kernels can run, and the
    host waits for their codes. Otherwise it waits for the differences, and encodes and
    decodes them.

    Args:
        comm: Ranks that publish tensors, at least two, this one included.
        bucket: The bucket.
        codec: The codec, which encodes float32.
        on_host: Whether the differences are on the host, also if the parameters are on
            a device.

    Raises:
        ValueError: The codec cannot encode as many values.
    """

    def __init__(
        self,
        comm: Communicator,
        bucket: Bucket,
        codec: Codec,
        *,
        on_host: bool = False,
    ) -> None:
        self._comm = comm
        self._bucket = bucket
        self._staging = None if on_host else bucket.staging
        self._dtype = torch.promote_types(bucket.dtype, torch.float32)
        self._codec = codec
        config = comm.world.config
        self._encodes_there = encodes_there(
            codec, self._staging, config.device_codes, config.operation_timeout_s
        )
        head = _PROGRESS_NBYTES + len(bucket.slots)
        self._head = -(-head // _ALIGNMENT_NBYTES) * _ALIGNMENT_NBYTES
        self._codes = codec.encoded_nbytes(bucket.numel, torch.float32)
        # Operations in shared memory read it without a copy.
        self._sent = shared_empty(self._head + self._codes, torch.uint8).zero_()

    def start(
        self,
        difference: torch.Tensor,
        progress: StateRound,
        sources: Sequence[int],
        destinations: Sequence[int],
        name: str,
        *,
        enable_topo_check: bool,
    ) -> tuple[PublishedChange, Handle[torch.Tensor]]:
        """Start to send a difference.

        Args:
            difference: The values; shape ``(numel,)``.
            progress: The state to which they belong.
            sources: Members that send to this rank.
            destinations: Members that this rank sends to.
            name: Name of the operation.
            enable_topo_check: As in ``neighbor_allgather``.

        Returns:
            This rank's own message, and the operation, for ``received``.
        """
        limit_s = self._comm.world.config.operation_timeout_s
        dtype = torch.float32 if progress.rounds else self._dtype
        values = difference.to(dtype)
        encodes_there = self._encodes_there and progress.rounds > 0
        if not encodes_there:
            values = values_on_host(values, name, limit_s)
        own_codes: torch.Tensor | None = None
        if encodes_there:
            sent = self._sent
            own_codes = values.new_zeros(self._codes + 1, dtype=torch.uint8)
            is_finite = self._encode_there(values, own_codes, progress, name)
        elif progress.rounds == 0:
            is_finite = bool(values.isfinite().all())
            sent = torch.cat(
                [self._sent[: self._head], values.view(torch.uint8).flatten()]
            )
        else:
            sent = self._sent
            codec = self._codec.at_round(progress.rounds)
            is_finite = codec.encode(values, sent[self._head :])
        not_finite = []
        if not is_finite:
            values = values_on_host(values, name, limit_s)
            not_finite = self._positions_not_finite(values)
        head = sent[: self._head]
        head[:_PROGRESS_NBYTES].copy_(
            torch.tensor([progress.run, progress.rounds]).view(torch.uint8)
        )
        head[_PROGRESS_NBYTES:] = 0
        for position in not_finite:
            head[_PROGRESS_NBYTES + position] = 1
        handle = neighbor_allgather_nonblocking(
            sent,
            src_ranks=sources,
            dst_ranks=destinations,
            enable_topo_check=enable_topo_check,
            name=name,
            process_set=self._comm,
        )
        return self._read(sent, own_codes), handle

    def _encode_there(
        self,
        values: torch.Tensor,
        codes: torch.Tensor,
        progress: StateRound,
        name: str,
    ) -> bool:
        """Encode values on their device into the message, and wait for the codes.

        Args:
            values: The values, float32.
            codes: Memory of the device for the codes, and a byte for the result.
            progress: As in ``start``.
            name: Name of the operation.

        Returns:
            Whether all values can be decoded.
        """
        assert self._staging is not None
        codec = self._codec.at_round(progress.rounds)
        codes[-1:].copy_(codec.start_encode(values, codes[:-1]))
        copy = self._staging.to_host(codes)
        copy.wait(name, self._comm.world.config.operation_timeout_s)
        self._sent[self._head :] = copy.values[:-1]
        return bool(copy.values[-1])

    def received(
        self, messages: torch.Tensor, sources: Sequence[int]
    ) -> Mapping[int, PublishedChange]:
        """Return the neighbors' messages by member.

        Args:
            messages: The result of the operation.
            sources: The members, as in ``start``.
        """
        found = {}
        for member in sources:
            rounds = int(messages[:_PROGRESS_NBYTES].clone().view(torch.int64)[1])
            end = self._head + (self._codes if rounds else self._values_nbytes)
            found[member] = self._read(messages[:end])
            messages = messages[end:]
        return found

    @property
    def _values_nbytes(self) -> int:
        return self._bucket.numel * self._dtype.itemsize

    def _read(
        self, message: torch.Tensor, own_codes: torch.Tensor | None = None
    ) -> PublishedChange:
        """Decode a message.

        Args:
            message: The message.
            own_codes: Its codes on the device, and a byte, if they were made there.
        """
        # A copy, because a message may begin where no number may.
        run, rounds = message[:_PROGRESS_NBYTES].clone().view(torch.int64).tolist()
        flags = message[_PROGRESS_NBYTES:][: len(self._bucket.slots)]
        not_finite = flags.nonzero().flatten().tolist()
        values = None
        if not not_finite:
            payload = message[self._head :]
            if self._encodes_there and rounds:
                assert self._staging is not None
                codes = own_codes
                if codes is None:
                    codes = self._staging.to_device(payload)
                values = self._decode(codes[: self._codes], rounds)
            else:
                values = self._decode(payload, rounds)
                if self._staging is not None:
                    values = self._staging.to_device(values)
        return PublishedChange(StateRound(run, rounds), not_finite, values)

    def _decode(self, payload: torch.Tensor, rounds: int) -> torch.Tensor:
        if rounds == 0:
            return payload.clone().view(self._dtype)
        values = payload.new_empty(self._bucket.numel, dtype=torch.float32)
        self._codec.at_round(rounds).start_decode(payload, values)
        # Codecs may decode 0 as another value. Checkpoints leave the padding out.
        for slot in self._bucket.slots:
            padding = values[slot.offset + slot.shape.numel() : slot.end]
            if padding.numel():
                padding.zero_()
        return values

    def _positions_not_finite(self, values: torch.Tensor) -> list[int]:
        """Return the parameters to blame, of values that could not be encoded."""
        largest = torch.tensor(
            [
                float(torch.linalg.vector_norm(view, ord=math.inf))
                if len(view)
                else 0.0
                for view in (
                    values[slot.offset :][: slot.shape.numel()]
                    for slot in self._bucket.slots
                )
            ]
        )
        not_finite = largest.isfinite().logical_not().nonzero().flatten().tolist()
        # Finite values that the codec cannot encode are too large.
        return not_finite or [int(largest.argmax())]
