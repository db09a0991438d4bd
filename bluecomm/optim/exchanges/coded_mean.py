"""The mean over all ranks of values that are sent as codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from bfrun.wording import format_ranks
from bluecomm.compression import Codec, ErrorFeedback
from bluecomm.compression.device_codes import encodes_there
from bluecomm.device.staging import Staging, staging_of, values_beside, values_on_host
from bluecomm.ops.allgather import allgather_nonblocking
from bluecomm.ops.neighbor_weights import STATIC, Weights
from bluecomm.ops.refusal import Operation, told
from bluecomm.ops.tensor import shared_empty
from bluecomm.optim.buckets.slots import Slot
from bluecomm.optim.exchanges.dynamic_topology import DynamicTopology
from bluecomm.optim.exchanges.exchange import Exchange, start_average
from bluecomm.optim.options import StepSettings
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.handle import MappedHandle

# Codes begin at a multiple of this number.
_ALIGNMENT_NBYTES = 32


class CodedMean(Exchange):
    """An allgather of codes, which each rank decodes and adds in order of rank.

    So all ranks get the same bits. A message begins with one byte per parameter, which
    is 1 if the sender's values are not finite. In a world of one nothing is encoded.

    Values on a device are encoded there, if the codec's kernels can run; the host waits
    for their codes, and the device decodes and adds those of all ranks. Otherwise the
    host waits for the values, encodes and decodes, and copies the sums back.

    Args:
        comm: Ranks that take part.
        settings: Settings of the step.
        codec: The codec, which encodes float32. Values of other types are converted.
        feedback: Adds what codes lose to the values of the next round, by the name of
            the operation. ``None``: it is lost.
        slots: The parameters of each operation, by its name.
    """

    def __init__(
        self,
        comm: Communicator,
        settings: StepSettings,
        codec: Codec,
        feedback: ErrorFeedback | None,
        slots: Mapping[str, Sequence[Slot]],
    ) -> None:
        super().__init__(comm, settings, None)
        self._codec = codec
        self._feedback = feedback
        self._slots = slots
        # Operations in shared memory read these without a copy.
        self._sent: dict[str, torch.Tensor] = {}
        # Whether each device encodes; see ``encodes_there``.
        self._is_coder: dict[Staging | None, bool] = {}

    def weights(self, round_number: int) -> Weights:
        return STATIC

    def start(
        self,
        weights: Weights,
        source: torch.Tensor,
        destination: torch.Tensor,
        name: str,
    ) -> Handle[torch.Tensor]:
        if self._comm.size == 1:
            return start_average(self._comm, source, destination, name)
        return MappedHandle(
            self.start_codes(source, name),
            lambda codes: self._average(codes, destination),
        )

    def start_codes(self, source: torch.Tensor, name: str) -> Handle[torch.Tensor]:
        """Encode ``source``, which may change then, and start the allgather.

        Returns:
            A handle of the codes of all ranks that have sent a message, for
            ``add_mean``. Its ``wait`` raises FloatingPointError on all ranks if values
            of a rank are not finite.
        """
        limit_s = self._comm.world.config.operation_timeout_s
        values = source.detach().float()
        message = self._message(name, values.numel())
        slots = self._slots[name]
        head = message[: len(slots)].zero_()
        codes = message[_head_nbytes(slots) :]
        if self._encodes_there(source):
            are_finite = self._encode_there(name, values, codes)
        else:
            values = values_on_host(values, name, limit_s)
            are_finite = self._encode(name, values, codes)
        if not are_finite:
            values = values_on_host(values, name, limit_s)
            bad = [not slot.view_of(values).isfinite().all() for slot in slots]
            # If none is, the sum with what was lost before exceeds float32.
            head.copy_(torch.tensor(bad if any(bad) else [True] * len(bad)))
        gathered = allgather_nonblocking(message, name, process_set=self._comm)
        return MappedHandle(gathered, lambda messages: self._codes_in(messages, name))

    def add_mean(
        self, codes: torch.Tensor, into: torch.Tensor, alpha: float = 1.0
    ) -> None:
        """Add the mean of what all ranks have sent, times ``alpha``, to values."""
        is_exact = into.dtype == torch.float32
        if self._encodes_there(into):
            codes = values_beside(into, codes.contiguous())
        if is_exact and staging_of(into) is staging_of(codes):
            self._codec.add_mean(codes, into, alpha)
            return
        mean = codes.new_zeros(into.shape, dtype=torch.float32)
        self._codec.add_mean(codes, mean, alpha if is_exact else 1.0)
        there = mean
        if staging_of(into) is not staging_of(mean):
            there = values_beside(into, mean)
        there = there.to(into.dtype)
        into.add_(there, alpha=1.0 if is_exact else alpha)

    def subtract_own(self, name: str, values: torch.Tensor) -> None:
        """Subtract what this rank sent last in an operation from float32 values."""
        codes = self._sent[name][_head_nbytes(self._slots[name]) :]
        if self._encodes_there(values):
            codes = values_beside(values, codes)
        if staging_of(values) is staging_of(codes):
            self._codec.add(codes, values, -1.0)
            return
        decoded = torch.empty(values.shape, dtype=torch.float32)
        self._codec.decode(codes, decoded)
        values.sub_(values_beside(values, decoded))

    def refused(self, weights: Weights, name: str) -> Operation:
        return "allgather", name, None

    def _message(self, name: str, count: int) -> torch.Tensor:
        """Return the memory of this rank's message of an operation."""
        if name not in self._sent:
            nbytes = _head_nbytes(self._slots[name])
            nbytes += self._codec.encoded_nbytes(count, torch.float32)
            self._sent[name] = shared_empty(nbytes, torch.uint8).zero_()
        return self._sent[name]

    def _encodes_there(self, values: torch.Tensor) -> bool:
        """Return whether codes of values are made where the values are, on a device."""
        staging = staging_of(values)
        if staging not in self._is_coder:
            config = self._comm.world.config
            self._is_coder[staging] = encodes_there(
                self._codec, staging, config.device_codes, config.operation_timeout_s
            )
        return self._is_coder[staging]

    def _encode_there(
        self, name: str, values: torch.Tensor, into: torch.Tensor
    ) -> bool:
        """Encode values on their device, and wait for the codes; see ``_encode``."""
        staging = staging_of(values)
        assert staging is not None
        coded = values.new_zeros(into.numel() + 1, dtype=torch.uint8)
        if self._feedback is None:
            well = self._codec.start_encode(values, coded[:-1])
        else:
            well = self._feedback.start_encode(self._codec, name, values, coded[:-1])
        coded[-1:].copy_(well)
        copy = staging.to_host(coded)
        copy.wait(name, self._comm.world.config.operation_timeout_s)
        into.copy_(copy.values[:-1])
        return bool(copy.values[-1])

    def _encode(self, name: str, values: torch.Tensor, into: torch.Tensor) -> bool:
        if self._feedback is None:
            return self._codec.encode(values, into)
        return self._feedback.encode(self._codec, name, values, into)

    def _average(self, codes: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
        self.add_mean(codes, destination.zero_())
        return destination

    def _codes_in(self, gathered: torch.Tensor, name: str) -> torch.Tensor:
        """Return the codes of the messages of an operation.

        Raises:
            FloatingPointError: Values of a rank are not finite; raised on all ranks.
        """
        slots = self._slots[name]
        messages = gathered.view(-1, len(self._sent[name]))
        if bool(messages[:, : len(slots)].any()):
            raise told(self._error(slots, messages))
        return messages[:, _head_nbytes(slots) :]

    def _error(
        self, slots: Sequence[Slot], messages: torch.Tensor
    ) -> FloatingPointError:
        """Return the error for values that are not finite."""
        found = []
        for position, slot in enumerate(slots):
            flags = messages[:, position].tolist()
            if any(flags):
                ranks = [
                    rank
                    for rank, flag in zip(self._comm.ranks_left, flags, strict=False)
                    if flag
                ]
                found.append(f"{slot.name!r} on {format_ranks(ranks, noun=True)}")
        return FloatingPointError(
            f"DistributedOptimizer: parameters are not finite: {', '.join(found)}. "
            "Lower the learning rate, or clip the gradients"
        )

    def _make_dynamic(self, topology: object) -> DynamicTopology:
        raise ValueError("a mean over all ranks takes no topology")


def _head_nbytes(slots: Sequence[Slot]) -> int:
    """Return the bytes of a message before the codes."""
    return -(-len(slots) // _ALIGNMENT_NBYTES) * _ALIGNMENT_NBYTES
