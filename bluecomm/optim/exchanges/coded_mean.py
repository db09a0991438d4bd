"""The mean over all ranks of values that are sent as codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from bfrun.wording import format_ranks
from bluecomm.compression import Codec, ErrorFeedback
from bluecomm.compression.device_codes import encodes_there
from bluecomm.device.staging import HostCopy, Staging
from bluecomm.device.staging_table import staging_of
from bluecomm.device.values import copied_fast, values_beside, values_on_host
from bluecomm.ops.nccl_gather import gathers_through_nccl
from bluecomm.ops.neighbor_weights import STATIC, Weights
from bluecomm.ops.refusal import Operation, told
from bluecomm.ops.start import start_gather
from bluecomm.ops.tensor import shared_empty
from bluecomm.optim.buckets.slots import Slot
from bluecomm.optim.exchanges.dynamic_topology import DynamicTopology
from bluecomm.optim.exchanges.exchange import Exchange, start_average
from bluecomm.optim.finite import are_not_finite
from bluecomm.optim.options import StepSettings
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.handle import MappedHandle

# Codes begin at a multiple of this number.
_ALIGNMENT_NBYTES = 32


class CodedMean(Exchange):
    """An allgather of codes, which each rank decodes and adds in order of rank.

    So all ranks get the same bits. A message begins with one byte per parameter, which
    is 1 if the sender's values are not finite. In a world of one nothing is encoded.

    Values on a device are encoded there, if the codec's kernels can run, and the device
    decodes and adds the codes of all ranks; the host waits for nothing but the result
    of the allgather. Otherwise the host waits for the values, encodes and decodes, and
    copies the sums back. If NCCL is in use, it carries out the allgather of all ranks,
    also of those whose host encodes.

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
        # The last messages, on the host or on the device that has encoded them. On the
        # host they are in shared memory, where operations read them without a copy.
        self._sent: dict[str, torch.Tensor] = {}
        # Whether each device encodes; see ``encodes_there``.
        self._is_coder: dict[Staging | None, bool] = {}
        if comm.size > 1:
            # Kernels are compiled before the training begins.
            for of_operation in slots.values():
                self._encodes_there(of_operation[0].parameter)

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
            lambda messages: self._average(name, messages, destination),
        )

    def start_codes(self, source: torch.Tensor, name: str) -> Handle[torch.Tensor]:
        """Encode ``source``, which may change then, and start the allgather.

        Returns:
            A handle of the messages of all ranks that have sent one, for ``add_mean``.
            Its ``wait`` raises FloatingPointError on all ranks if values of a rank are
            not finite.

        Raises:
            RuntimeError: As in ``Staging.to_host``, or a kernel failed.
        """
        values, staging = source.detach().float(), staging_of(source)
        if self._encodes_there(source):
            message = self._encode_there(name, values)
        else:
            message = self._encode_on_host(name, values)
        sent = HostCopy(message, None)
        if staging is not None and self._goes_through_nccl(staging):
            sent = HostCopy(_beside(staging, message), None)
        elif staging_of(message) is not None:
            assert staging is not None
            sent = staging.to_host(message)
        gathered = start_gather(
            self._comm,
            "allgather",
            sent.values,
            name=name,
            timeout_s=None,
            gate=sent.gate,
        )
        return MappedHandle(gathered, lambda result: self._checked(name, result[0]))

    def add_mean(
        self,
        name: str,
        messages: torch.Tensor,
        into: torch.Tensor,
        alpha: float = 1.0,
    ) -> None:
        """Add the mean of what all ranks have sent, times ``alpha``, to values.

        Args:
            name: Name of the operation.
            messages: The result of ``start_codes``.
            into: The values to add to; shape ``(numel,)``, on any device.
            alpha: Factor of the mean.
        """
        is_exact = into.dtype == torch.float32
        if self._encodes_there(into):
            staging = staging_of(into)
            assert staging is not None
            messages = _beside(staging, messages)
        else:
            messages = self._on_host(name, messages)
        codes = messages[:, self._head_nbytes(name) :]
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
        codes = self._sent[name][self._head_nbytes(name) :]
        if staging_of(values) is staging_of(codes):
            self._codec.add(codes, values, -1.0)
            return
        decoded = torch.empty(values.shape, dtype=torch.float32)
        self._codec.decode(codes, decoded)
        values.sub_(values_beside(values, decoded))

    def refused(self, weights: Weights, name: str) -> Operation:
        return "allgather", name, None

    def _encodes_there(self, values: torch.Tensor) -> bool:
        """Return whether codes of values are made where the values are, on a device."""
        staging = staging_of(values)
        if staging not in self._is_coder:
            config = self._comm.world.config
            self._is_coder[staging] = encodes_there(
                self._codec, staging, config.device_codes, config.operation_timeout_s
            )
        return self._is_coder[staging]

    def _goes_through_nccl(self, staging: Staging) -> bool:
        """Return whether NCCL carries out the allgather.

        In a job that survives losses the host does, so that all results of a round are
        released together: rows through NCCL would be a transaction of each operation.
        """
        is_repeated = self._comm.is_repeated
        return not is_repeated and gathers_through_nccl(
            self._comm, staging, "allgather"
        )

    def _encode_there(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Encode values on their device; return the message, which is there."""
        slots, head = self._slots[name], self._head_nbytes(name)
        message = values.new_zeros(
            self._message_nbytes(name, values), dtype=torch.uint8
        )
        if self._feedback is None:
            well = self._codec.start_encode(values, message[head:])
        else:
            well = self._feedback.start_encode(
                self._codec, name, values, message[head:]
            )
        bad = are_not_finite([slot.view_of(values) for slot in slots])
        message[: len(slots)].copy_(_blamed(bad, well))
        self._sent[name] = message
        return message

    def _encode_on_host(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Encode values, which it first waits for; return the message."""
        values = self._on_host(name, values)
        slots = self._slots[name]
        message = self._sent.get(name)
        if message is None or staging_of(message) is not None:
            nbytes = self._message_nbytes(name, values)
            message = shared_empty(nbytes, torch.uint8).zero_()
            self._sent[name] = message
        codes = message[self._head_nbytes(name) :]
        if self._feedback is None:
            are_finite = self._codec.encode(values, codes)
        else:
            are_finite = self._feedback.encode(self._codec, name, values, codes)
        head = message[: len(slots)].zero_()
        if not are_finite:
            bad = are_not_finite([slot.view_of(values) for slot in slots])
            head.copy_(_blamed(bad, torch.tensor(False)))
        return message

    def _average(
        self, name: str, messages: torch.Tensor, destination: torch.Tensor
    ) -> torch.Tensor:
        self.add_mean(name, messages, destination.zero_())
        return destination

    def _head_nbytes(self, name: str) -> int:
        """Return the bytes of a message before the codes."""
        return -(-len(self._slots[name]) // _ALIGNMENT_NBYTES) * _ALIGNMENT_NBYTES

    def _message_nbytes(self, name: str, values: torch.Tensor) -> int:
        codes = self._codec.encoded_nbytes(values.numel(), torch.float32)
        return self._head_nbytes(name) + codes

    def _checked(self, name: str, gathered: torch.Tensor) -> torch.Tensor:
        """Return the messages of an operation, one in each row.

        Raises:
            FloatingPointError: Values of a rank are not finite; raised on all ranks.
        """
        slots = self._slots[name]
        messages = gathered.view(-1, len(self._sent[name]))
        heads = self._on_host(name, messages[:, : len(slots)].contiguous())
        if bool(heads.any()):
            raise told(self._error(slots, heads))
        return messages

    def _on_host(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor on the host, which waits for it."""
        limit_s = self._comm.world.config.operation_timeout_s
        return values_on_host(tensor, name, limit_s)

    def _error(self, slots: Sequence[Slot], heads: torch.Tensor) -> FloatingPointError:
        """Return the error for values that are not finite."""
        found = []
        for position, slot in enumerate(slots):
            flags = heads[:, position].tolist()
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


def _beside(staging: Staging, tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor on a device: itself, if it is there."""
    if staging_of(tensor) is staging:
        return tensor
    return copied_fast(staging, tensor)


def _blamed(bad: torch.Tensor, well: torch.Tensor) -> torch.Tensor:
    """Return which parameters a rank blames for values that cannot be encoded.

    Args:
        bad: Whether each of them is not finite.
        well: Whether all values can be encoded.
    """
    # If all parameters are finite, their sum with what codes have lost exceeds float32,
    # and all of them are blamed.
    return bad | ~(well | bad.any())
