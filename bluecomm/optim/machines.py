"""Exchanges in two levels: inside each machine, and between the first ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bluecomm.device.staging import HostCopy
from bluecomm.ops.allreduce import allreduce_parts_nonblocking
from bluecomm.ops.broadcast import broadcast_nonblocking_
from bluecomm.ops.reduce_op import Sum
from bluecomm.ops.refusal import Operation, is_marked, refuse
from bluecomm.optim.algorithm import Context
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.chained_handle import ChainedHandle
from bluecomm.runtime.handle import DoneHandle


@dataclasses.dataclass(frozen=True)
class Machines:
    """Ranks that work together in a hierarchical exchange.

    Attributes:
        local: The ranks of this machine.
        first_ranks: The first rank of each machine, in the order of the machines.
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


class MachineExchange:
    """A sum inside each machine, an exchange of the first ranks, and a broadcast.

    The three parts follow one another without a wait of the program. On a single
    machine there is no broadcast, because all ranks have the sum.

    Args:
        machines: The machines of the ranks that take part.
        name: Name of the operations inside the machine.
        between: Starts what follows the sum. The result must be in the tensor on the
            first rank of each machine, or on all ranks of a single one, when it ends.
            Called on every rank, also on those that have nothing to do, perhaps by the
            thread of callbacks.
        refused: Describes the operations of ``between`` among the first ranks, which
            are refused if this rank does not start them.
    """

    def __init__(
        self,
        machines: Machines,
        name: str,
        between: Callable[[], Handle[Any]],
        refused: Callable[[], Iterable[Operation]],
    ) -> None:
        self._machines = machines
        self._values: torch.Tensor
        self._name = name
        self._between = between
        self._refused = refused
        # How many of the parts behind the sum inside the machine this rank has started,
        # or refused itself.
        self._parts = 0

    def start(self, values: HostCopy) -> Handle[Any]:
        """Start an exchange.

        Args:
            values: Tensor of the host, perhaps on its way there. It gets the sum, and
                then the result, and belongs to the exchange until it has been waited
                for.
        """
        self._parts = 0
        self._values = values.values
        inside = allreduce_parts_nonblocking(
            self._values,
            (),
            op=Sum,
            name=self._name,
            process_set=self._machines.local,
            gate=values.gate,
        )
        return ChainedHandle(
            inside, self._go_between, self._hand_down, on_failure=self._give_up
        )

    def _go_between(self, _: torch.Tensor) -> Handle[Any]:
        handle = self._between()
        self._parts = 1
        return handle

    def _hand_down(self, _: object) -> Handle[Any]:
        """Start the broadcast of the result inside the machine."""
        if self._machines.first_ranks.size == 1:
            return DoneHandle(None)
        self._parts = 2  # a broadcast that cannot start refuses itself
        local = self._machines.local
        return broadcast_nonblocking_(self._values, local.ranks[0], self._name, local)

    def _give_up(self, error: Exception) -> None:
        """Tell the others which operations this rank does not start."""
        first_ranks, local = self._machines.first_ranks, self._machines.local
        if first_ranks.size == 1:
            return
        if first_ranks.included and self._parts == 0 and not is_marked(error):
            refuse(first_ranks, self._refused(), error)
        if self._parts < 2:
            operation: Operation = ("broadcast", self._name, None)
            refuse(local, [operation], error)
