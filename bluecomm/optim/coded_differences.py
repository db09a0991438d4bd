"""Sends codes of a bucket's differences to neighbors, and decodes theirs.

Each rank publishes a tensor by its changes: neighbors that have added all changes so
far have a copy that is equal bit by bit, because they decode the same bytes as the
sender does. Copies of different runs or steps would stay wrong without a sign, so a
message says to which state its codes belong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from bluecomm.compression import Codec
from bluecomm.compression.device_codes import encodes_there
from bluecomm.device.staging import HostCopy
from bluecomm.device.staging_table import staging_of
from bluecomm.device.values import copied_fast, values_on_host
from bluecomm.ops.nccl_gather import gathers_through_nccl
from bluecomm.ops.neighbor_allgather import start_neighbor_allgather
from bluecomm.ops.tensor import shared_empty
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.finite import is_finite, largest_magnitudes
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.handle import MappedHandle

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

    Differences on a device are encoded and decoded there, if the codec's kernels can
    run, and the host does not wait for the device, except in the first round. Otherwise
    the host waits for the differences, and encodes and decodes them. If NCCL is in use,
    it carries the messages of all ranks, also of those whose host encodes, and the host
    waits for the heads that have come.

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
        self._goes_through_nccl = (
            self._staging is not None
            and not comm.is_repeated
            and gathers_through_nccl(comm, self._staging, "neighbor_allgather")
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
    ) -> Handle[Mapping[int, PublishedChange]]:
        """Start to send a difference.

        Args:
            difference: The values; shape ``(numel,)``.
            progress: The state to which they belong.
            sources: Members that send to this rank.
            destinations: Members that this rank sends to.
            name: Name of the operation.
            enable_topo_check: As in ``neighbor_allgather``.

        Returns:
            The operation. Its result is the messages by member, this rank's own, which
            is the first one, included.

        Raises:
            CommunicationTimeout: The host waits for the differences, and the device has
                not computed them in time.
            BluecommError: Work that the program has started on the device failed.
            RuntimeError: As in ``Staging.to_host``, or a kernel failed.
        """
        is_first = progress.rounds == 0
        values = difference.to(self._dtype if is_first else torch.float32)
        if self._encodes_there and not is_first:
            own = self._encode_there(values, progress)
        else:
            own = self._encode_on_host(values, progress, name)
        if self._goes_through_nccl:
            sent = HostCopy(self._beside(own), None)
        elif staging_of(own) is not None:
            assert self._staging is not None
            sent = self._staging.to_host(own)
        else:
            sent = HostCopy(own, None)
        handle = start_neighbor_allgather(
            self._comm,
            sent,
            sources,
            destinations,
            enable_topo_check=enable_topo_check,
            name=name,
        )

        def read(
            gathered: tuple[torch.Tensor, list[int]],
        ) -> Mapping[int, PublishedChange]:
            # The copy to the host has ended, unless no rank receives the message.
            limit_s = self._comm.world.config.operation_timeout_s
            sent.wait(name, limit_s)
            received = torch.split(*gathered)
            heads = torch.stack([one[: self._head] for one in (sent.values, *received)])
            heads = values_on_host(heads, name, limit_s)
            members = (self._comm.rank, *sources)
            return {
                member: self._read(head, message, name)
                for member, head, message in zip(
                    members, heads, (own, *received), strict=True
                )
            }

        return MappedHandle(handle, read)

    def _encode_there(self, values: torch.Tensor, progress: StateRound) -> torch.Tensor:
        """Encode values on their device; return the message, which is there, too."""
        assert self._staging is not None
        codec = self._codec.at_round(progress.rounds)
        message = values.new_zeros(self._head + self._codes, dtype=torch.uint8)
        well = codec.start_encode(values, message[self._head :])
        begin = self._staging.empty_on_host((_PROGRESS_NBYTES,), torch.uint8)
        self._staging.fill(message[:_PROGRESS_NBYTES], begin.copy_(_begin(progress)))
        self._flags(message).copy_(self._not_finite(values, well))
        return message

    def _encode_on_host(
        self, values: torch.Tensor, progress: StateRound, name: str
    ) -> torch.Tensor:
        """Encode values, which it first waits for; return the message.

        The first round sends the values themselves.
        """
        limit_s = self._comm.world.config.operation_timeout_s
        values = values_on_host(values, name, limit_s)
        message = self._sent
        if progress.rounds == 0:
            message = torch.cat(
                [message[: self._head], values.view(torch.uint8).flatten()]
            )
            well = is_finite(values)
        else:
            codec = self._codec.at_round(progress.rounds)
            well = codec.encode(values, message[self._head :])
        message[:_PROGRESS_NBYTES].copy_(_begin(progress))
        flags = self._flags(message).zero_()
        if not well:
            flags.copy_(self._not_finite(values, torch.tensor(False)))
        return message

    def _flags(self, message: torch.Tensor) -> torch.Tensor:
        """Return the part of a message that says which parameters are not finite."""
        return message[_PROGRESS_NBYTES:][: len(self._bucket.slots)]

    def _read(
        self, head: torch.Tensor, message: torch.Tensor, name: str
    ) -> PublishedChange:
        """Decode a message.

        Args:
            head: Its head, on the host.
            message: The message, on the host or on the device.
            name: Name of the operation.
        """
        # A copy, because a message may begin where no number may.
        run, rounds = head[:_PROGRESS_NBYTES].clone().view(torch.int64).tolist()
        not_finite = self._flags(head).nonzero().flatten().tolist()
        values = None
        if not not_finite:
            values = self._decode(message[self._head :], rounds, name)
        return PublishedChange(StateRound(run, rounds), not_finite, values)

    def _decode(self, payload: torch.Tensor, rounds: int, name: str) -> torch.Tensor:
        """Return the values of a message, where the differences are."""
        if rounds == 0:
            return self._beside(payload.clone().view(self._dtype))
        if self._encodes_there:
            payload = self._beside(payload)
        else:
            limit_s = self._comm.world.config.operation_timeout_s
            payload = values_on_host(payload, name, limit_s)
        values = payload.new_empty(self._bucket.numel, dtype=torch.float32)
        self._codec.at_round(rounds).start_decode(payload, values)
        # Codecs may decode 0 as another value. Checkpoints leave the padding out.
        for slot in self._bucket.slots:
            padding = values[slot.offset + slot.shape.numel() : slot.end]
            if padding.numel():
                padding.zero_()
        return self._beside(values)

    def _beside(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor where the differences are."""
        if self._staging is None or staging_of(tensor) is self._staging:
            return tensor
        return copied_fast(self._staging, tensor)

    def _not_finite(self, values: torch.Tensor, well: torch.Tensor) -> torch.Tensor:
        """Return the parameters to blame if values cannot be encoded.

        Args:
            values: The values.
            well: Whether they can be encoded; shape ``()``, where the values are.

        Returns:
            For each parameter whether it is to blame; shape ``(parameters,)``,
            ``torch.bool``.
        """
        largest = largest_magnitudes(
            [values[slot.offset :][: slot.shape.numel()] for slot in self._bucket.slots]
        )
        bad = largest.isfinite().logical_not()
        # Finite values that the codec cannot encode are too large.
        is_too_large = ~(well | bad.any())
        return bad | (is_too_large & (largest == largest.max()))


def _begin(progress: StateRound) -> torch.Tensor:
    """Return the first bytes of a message."""
    return torch.tensor([progress.run, progress.rounds]).view(torch.uint8)
