"""One hierarchical_neighbor_allreduce through NCCL, in several calls.

All members first agree that they call. Then the members of a machine add their
tensors, so that each gets a slice of the mean. Each member exchanges its slice with
the members of other machines that have the same one. In the end the members of a
machine gather their slices. If machines have different numbers of members, the first
member of each machine has the whole mean as its slice. docs/notes/nccl-backend.md has
the states.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import TYPE_CHECKING

from bluecomm.ops.device_operation import DeviceOperation
from bluecomm.ops.nccl_call import NcclWork
from bluecomm.ops.nccl_collective import Collective
from bluecomm.ops.nccl_exchange import NcclExchange
from bluecomm.ops.nccl_gather import RowExchange
from bluecomm.ops.nccl_reductions import NcclReductions
from bluecomm.ops.nccl_steps import NcclStep, WorkInSteps
from bluecomm.ops.splits import share_of
from bluecomm.runtime import parameters

if TYPE_CHECKING:
    from bluecomm._native import NcclCall, NcclGroup, NcclQueue


class _Agreement:
    """Work without messages, by which all members learn that their calls match."""

    def make_draft(
        self, queue: NcclQueue, group: NcclGroup, stream: int, limit_s: float
    ) -> NcclCall:
        """See ``NcclWork``."""
        return queue.make_exchange(
            group=group, sends=[], receives=[], stream=stream, limit_s=limit_s
        )

    def complete(self, gone: Collection[int]) -> None:
        """See ``NcclWork``."""


def hierarchy_steps(operation: DeviceOperation) -> WorkInSteps:
    """Return the work of the calls of a hierarchical_neighbor_allreduce.

    Its result is apart from its input, and its parameters have the weights between
    machines.
    """
    return WorkInSteps(_Agreement(), _later_steps(operation))


def _later_steps(operation: DeviceOperation) -> list[NcclStep]:
    """Return the calls of this member that follow the agreement."""
    comm, staging, _, dtype, source, result, weights = operation
    machine = comm.machine_group
    if machine.size == 1:
        alone = functools.partial(NcclExchange, staging, source, result, weights)
        return [NcclStep("mix", comm.first_ranks_group, alone)]
    is_even = comm.layout.is_homogeneous
    me, mates = machine.rank, range(machine.size)
    counts = [source.numel(), *(0 for _ in mates[1:])]
    if is_even:
        counts = [share_of(source.numel(), machine.size, mate) for mate in mates]
    mine = staging.empty((counts[me],), source.dtype)
    add = NcclReductions(
        dtype,
        source.view(-1),
        dict(enumerate(counts)),
        mine,
        me,
        parameters(op="average"),
    )
    exchange = functools.partial(NcclExchange, staging, mine, mine, weights)
    spread: NcclWork
    if is_even:
        to_all = dict.fromkeys(mates, (0, counts[me]))
        spread = RowExchange(
            *(mine, to_all, result.view(-1), mates, counts), gathers=True, copies=()
        )
    else:
        sent, root = (result if me else mine), parameters(root=0)
        spread = Collective("broadcast", dtype, sent, result, root)
    mix: list[NcclStep] = []
    if is_even:
        mix = [NcclStep("mix", comm.neighbors_group, exchange)]
    elif me == 0:
        mix = [NcclStep("mix", comm.first_ranks_group, exchange)]
    return [
        NcclStep("add", machine, lambda: add),
        *mix,
        NcclStep("spread", machine, lambda: spread),
    ]
