"""Averages a bucket's gradients: in full inside machines, as codes between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from bluecomm.compression import Codec, ErrorFeedback
from bluecomm.ops.allreduce import allreduce_nonblocking_
from bluecomm.ops.broadcast import broadcast_nonblocking_
from bluecomm.ops.reduce_op import Sum
from bluecomm.ops.refusal import Operation, is_marked, refuse
from bluecomm.optim.algorithm import Context
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.coded_gradients import CodedGradients
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.chained_handle import ChainedHandle
from bluecomm.runtime.handle import DoneHandle


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


@dataclasses.dataclass(frozen=True)
class Machines:
    """Ranks that work together in a hierarchical exchange.

    Attributes:
        local: The ranks of this machine.
        first_ranks: The first rank of each machine.
    """

    local: Communicator
    first_ranks: Communicator

    @classmethod
    def of(cls, context: Context) -> Machines:
        """Return the machines of an optimizer's ranks, for its own operations."""
        comm = context.comm
        members = [comm.layout.members(k) for k in range(comm.machine_size)]
        local = [comm.ranks[member] for member in members[comm.machine_rank]]
        first_ranks = [comm.ranks[first] for first, *_ in members]
        # Optimizers of other process sets may have an equal name and equal first ranks.
        owner = f"{comm.group_id}.{context.name}"
        return cls(
            Communicator(comm.world, local, owner=f"{owner}.machine"),
            Communicator(comm.world, first_ranks, owner=f"{owner}.machines"),
        )


class MachineGradients(CodedGradients):
    """The hierarchical exchanges of one bucket's gradients.

    The ranks of a machine add their gradients in the gradients' own type. The first
    ranks of the machines exchange the sums as codes, and divide by the number of all
    ranks with data, so each rank has the same weight, however many its machine has.
    Then each of them broadcasts the result inside its machine. On a single machine
    nothing is encoded.

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
        comm = machines.first_ranks
        super().__init__(context, bucket, codec, feedback, comm=comm, counters=1)
        self._local = machines.local
        self._name = f"{bucket.name}.machine"
        # How many of the parts behind the sum inside the machine this rank has started,
        # or refused itself.
        self._parts = 0

    def start(self, *, is_active: bool) -> None:
        gradients = self._gradients
        gradients.counters[0] = float(is_active)
        self._parts = 0
        inside = allreduce_nonblocking_(
            gradients.flat, op=Sum, name=self._name, process_set=self._local
        )
        self._handle = ChainedHandle(
            inside, self._between_machines, self._hand_down, on_failure=self._give_up
        )

    def _between_machines(self, _: torch.Tensor) -> Handle[Any]:
        """Start the exchange of the first ranks, once a machine's sum is here."""
        handle = self._start_between()
        self._parts = 1
        return handle

    def _start_between(self) -> Handle[Any]:
        gradients = self._gradients
        active = round(float(gradients.counters[0]))
        states = (gradients.flags > 0).to(torch.uint8)
        states += gradients.sparse_flags > 0
        if self._exchange is not None:
            return self._start(active, states)
        if self._comm.size == 1:
            # The machine is the only one, so all its ranks know the same.
            head = torch.tensor([active, *states.tolist()])
            divisor = self._divisor(head[None])
            if divisor > 1:
                gradients.values.div_(divisor)
        return DoneHandle(None)

    def _hand_down(self, _: object) -> Handle[Any]:
        """Start the broadcast of the result inside the machine."""
        gradients = self._gradients
        if self._comm.size == 1:
            return DoneHandle(None)
        if self._exchange is not None:
            gradients.counters[0] = float(self._active > 0)
        self._parts = 2  # a broadcast that cannot start refuses itself
        return broadcast_nonblocking_(
            gradients.flat, self._local.ranks[0], self._name, self._local
        )

    def finish(self, *, is_active: bool) -> int:
        """Wait for the exchange; see ``CodedGradients``.

        Returns:
            On the first rank of a machine the number of ranks with data; elsewhere
            whether it is above 0.
        """
        active = super().finish(is_active=is_active)
        if self._comm.included:
            return active
        return int(self._gradients.counters[0] > 0)

    def refused(self) -> Iterator[Operation]:
        """Describe nothing: a round begins with operations of other communicators."""
        return iter(())

    def _give_up(self, error: Exception) -> None:
        """Tell the others which operations this rank does not start."""
        is_refused = self._parts > 0 or is_marked(error)
        if self._exchange is not None and not is_refused:
            refuse(self._comm, self._exchange.refused(), error)
        if self._parts < 2 and self._comm.size > 1:
            operation: Operation = ("broadcast", self._name, None)
            refuse(self._local, [operation], error)
