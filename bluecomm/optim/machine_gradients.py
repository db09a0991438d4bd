"""Averages a bucket's gradients: in full inside machines, as codes between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from bfrun.wording import format_ranks
from bluecomm.compression import Codec, Compression, ErrorFeedback
from bluecomm.device.values import values_on_host
from bluecomm.ops.refusal import Operation
from bluecomm.optim.algorithm import Context
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.buckets.gradient_message import message_of
from bluecomm.optim.coded_gradients import NOT_FINITE, CodedGradients
from bluecomm.optim.machines import MachineExchange, Machines
from bluecomm.runtime import Handle
from bluecomm.runtime.handle import DoneHandle, MappedHandle


def coded_gradients(
    context: Context,
    bucket: Bucket,
    codec: Codec,
    feedback: ErrorFeedback | None = None,
    machines: Machines | None = None,
) -> CodedGradients:
    """Return exchanges among all ranks, or the hierarchical ones if given machines."""
    if machines is None:
        return CodedGradients(context, bucket, codec, feedback)
    return MachineGradients(context, bucket, codec, feedback, machines)


class MachineGradients(CodedGradients):
    """The hierarchical exchanges of one bucket's gradients.

    The ranks of a machine add their gradients in the gradients' own type. The first
    ranks of the machines exchange the sums as codes, and divide by the number of all
    ranks with data, so each rank has the same weight, however many its machine has.
    Then each of them broadcasts the result inside its machine. On a single machine
    nothing is encoded.

    If NCCL adds the gradients of a machine, they stay on their device, but for codes
    that the host makes: then the thread of callbacks waits for their sum. Otherwise all
    of this happens on the host, and gradients of a device are on their way there when
    the first part is submitted. So there is nothing left to ``begin``.

    Args:
        context: The optimizer; its world has at least two ranks.
        bucket: The bucket, to which this gives memory for gradients.
        codec: The codec, which encodes float32.
        feedback: As in ``CodedGradients``, on the first ranks of machines.
        machines: The machines of the optimizer's ranks.
    """

    def __init__(
        self,
        context: Context,
        bucket: Bucket,
        codec: Codec,
        feedback: ErrorFeedback | None,
        machines: Machines,
    ) -> None:
        # Whether NCCL adds the gradients of this machine.
        self._adds_there = machines.adds_on(bucket.staging, bucket.dtype)
        # The end of the message in which gradients of a device travel.
        self._tail: torch.Tensor | None = None
        super().__init__(
            context,
            bucket,
            codec,
            feedback,
            comm=machines.first_ranks,
            counters=1,
            on_host=not self._adds_there,
        )
        self._levels = MachineExchange(
            machines,
            f"{bucket.name}.machine",
            self._start_between,
            self._refused_between,
        )

    def start(self, *, is_active: bool) -> None:
        gradients = self._gradients
        gradients.counters[0] = float(is_active)
        self._on_host = None
        if self._adds_there:
            assert gradients.staging is not None
            gradients.follow_streams()
            self._handle = self._levels.start_on_device(
                gradients.values, gradients.tail, gradients.staging
            )
            return
        sent = message_of(gradients, Compression.none, keeps_input=False).sent
        if gradients.staging is not None:
            self._on_host, self._tail = torch.split(
                sent.values, [gradients.values.numel(), gradients.tail.numel()]
            )
        self._handle = MappedHandle(self._levels.start(sent), self._read_tail)

    def _read_tail(self, _: object) -> None:
        """Take the tail of a message that is not the memory of the gradients."""
        if self._tail is not None:
            self._gradients.tail.copy_(self._tail)

    def _write_tail(self) -> None:
        """Put the tail of the gradients into such a message."""
        if self._tail is not None:
            self._tail.copy_(self._gradients.tail)

    def _start_between(self) -> Handle[Any]:
        """Start the exchange of the first ranks, once a machine's sum is here."""
        self._read_tail(None)
        gradients = self._gradients
        active = round(float(gradients.counters[0]))
        states = (gradients.flags > 0).to(torch.uint8)
        states += gradients.sparse_flags > 0
        if self._exchange is not None:
            return MappedHandle(self._encode(active, states), self._count)
        if self._comm.size == 1:
            # The machine is the only one, so all its ranks know the same.
            head = torch.tensor([active, *states.tolist()])
            divisor = self._divisor(head[None])
            if divisor > 1:
                self._values.div_(divisor)
            self._write_tail()
        return DoneHandle(None)

    def _encode(self, active: int, states: torch.Tensor) -> Handle[int]:
        """Encode the machine's sum where it is, if the codec can, and start to send."""
        if self._encodes_there:
            return self._start_on_device(active, states)
        if self._adds_there:
            limit_s = self._comm.world.config.operation_timeout_s
            name = self._bucket.name
            self._on_host = values_on_host(self._gradients.values, name, limit_s)
        return self._start(active, states)

    def _count(self, _: object) -> None:
        """Take the result, and tell the other ranks whether any rank has data."""
        if self._adds_there:
            self._take_result()
        self._gradients.counters[0] = float(self._active > 0)
        self._write_tail()

    def _refused_between(self) -> Iterator[Operation]:
        return super().refused()

    def finish(self, *, is_active: bool) -> int:
        """Wait for the exchange; see ``CodedGradients``.

        Returns:
            On the first rank of a machine the number of ranks with data; elsewhere
            whether it is above 0.
        """
        active = super().finish(is_active=is_active)
        if self._comm.included:
            return active
        # The flags have the states, which the first rank has handed down.
        positions = (self._gradients.flags == NOT_FINITE).nonzero().flatten().tolist()
        self._not_finite = {position: [] for position in positions}
        return int(self._gradients.counters[0] > 0)

    def _where(self, senders: list[int]) -> str:
        """Name the machines by their first ranks, which alone know them."""
        if not senders:
            return ""
        return f" on the machine of {format_ranks(senders, noun=True)}"

    def refused(self) -> Iterator[Operation]:
        """Describe nothing: a round begins with operations of other communicators."""
        return iter(())
