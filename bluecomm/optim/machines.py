"""Exchanges in two levels: inside each machine, and between the first ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bluecomm.device.staging import HostCopy, Staging
from bluecomm.ops.allreduce import allreduce_parts_nonblocking
from bluecomm.ops.broadcast import broadcast_nonblocking_
from bluecomm.ops.on_stream import OnStream
from bluecomm.ops.reduce_op import Sum
from bluecomm.ops.refusal import Operation, is_marked, refuse
from bluecomm.optim.algorithm import Context
from bluecomm.optim.split_allreduce import (
    SplitAllreduce,
    name_of_tail,
    splits_allreduce,
)
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.chained_handle import ChainedHandle
from bluecomm.runtime.handle import DoneHandle, MappedHandle


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
            Communicator(
                comm.world,
                local,
                owner=f"{owner}.machine",
                may_use_nccl=comm.may_use_nccl and not comm.is_repeated,
            ),
            Communicator(comm.world, first_ranks, owner=f"{owner}.machines"),
        )

    def adds_on(self, staging: Staging | None, dtype: torch.dtype) -> bool:
        """Return whether NCCL adds the values of this machine on their device.

        The answer is the same on all ranks of a machine.

        Args:
            staging: Staging of the values' device; ``None`` if they are on the host.
            dtype: Element type of the values.
        """
        return splits_allreduce(self.local, staging, dtype, Sum)


class MachineExchange:
    """A sum inside each machine, an exchange of the first ranks, and a broadcast.

    The three parts follow one another without a wait of the program. On a single
    machine there is no broadcast, because all ranks have the sum. docs/optimizer.md has
    the states.

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
        self._name = name
        self._between = between
        self._refused = refused
        # Whether this rank has started the exchange of the first ranks, or refused it.
        self._has_gone_between = False
        # Names and tensors of the broadcasts that this rank has yet to start.
        self._left: list[tuple[str, torch.Tensor]] = []

    def start(self, values: HostCopy) -> Handle[Any]:
        """Start an exchange.

        Args:
            values: Tensor of the host, perhaps on its way there. It gets the sum, and
                then the result, and belongs to the exchange until it has been waited
                for.
        """
        self._begin((self._name, values.values))
        inside = allreduce_parts_nonblocking(
            values.values,
            (),
            op=Sum,
            name=self._name,
            process_set=self._machines.local,
            gate=values.gate,
        )
        return ChainedHandle(
            inside, self._go_between, self._hand_down, on_failure=self._give_up
        )

    def start_on_device(
        self, values: torch.Tensor, tail: torch.Tensor, staging: Staging
    ) -> Handle[Any]:
        """Start an exchange inside the machine through NCCL; see ``Machines.adds_on``.

        ``between``, and a wait for what it returns, compute on the stream that is
        current now.

        Args:
            values: Contiguous tensor on a device, on which the current stream has
                computed. It gets the sum, and then the result, as in ``start``. The
                stream of the wait follows the result.
            tail: Contiguous tensor of the host with at least one element, which does
                the same.
            staging: Staging of the device.
        """
        self._begin((name_of_tail(self._name), tail), (self._name, values))
        inside = SplitAllreduce(
            self._machines.local, values, tail, op=Sum, name=self._name
        )
        stream = staging.stream_context()

        def go_between(_: object) -> Handle[Any]:
            with stream:
                return OnStream(self._go_between(None), stream)

        def hand_down_values(_: object) -> Handle[Any]:
            with stream:
                if self._left:
                    return self._hand_down(None)
                # No operation follows, which the stream of the wait would follow.
                point = staging.point()
                return MappedHandle(DoneHandle(None), lambda _: staging.follow(point))

        def give_up(error: Exception) -> None:
            inside.abandon()
            self._give_up(error)

        return ChainedHandle(
            OnStream(inside.values, stream),
            lambda _: inside.tail,
            go_between,
            self._hand_down,
            hand_down_values,
            on_failure=give_up,
        )

    def _begin(self, *broadcasts: tuple[str, torch.Tensor]) -> None:
        self._has_gone_between = False
        self._left = [*broadcasts] if self._machines.first_ranks.size > 1 else []

    def _go_between(self, _: object) -> Handle[Any]:
        handle = self._between()
        self._has_gone_between = True
        return handle

    def _hand_down(self, _: object) -> Handle[Any]:
        """Start the next broadcast of the result inside the machine."""
        if not self._left:
            return DoneHandle(None)
        name, values = self._left.pop(0)  # a broadcast that cannot start refuses itself
        local = self._machines.local
        return broadcast_nonblocking_(values, local.ranks[0], name, local)

    def _give_up(self, error: Exception) -> None:
        """Tell the others which operations this rank does not start."""
        first_ranks, local = self._machines.first_ranks, self._machines.local
        if first_ranks.size == 1:
            return
        has_begun = self._has_gone_between or is_marked(error)
        if first_ranks.included and not has_begun:
            refuse(first_ranks, self._refused(), error)
        refuse(local, [("broadcast", name, None) for name, _ in self._left], error)
