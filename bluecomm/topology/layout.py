"""Layout of ranks on machines of equal size: consecutive ranks share a machine."""

from __future__ import annotations

import dataclasses

from bfrun.wording import count
from bluecomm.topology.graph import check_integer, check_rank


@dataclasses.dataclass(frozen=True)
class Layout:
    """Position of one rank among machines of ``local_size`` ranks each."""

    local_size: int
    local_rank: int
    machine_size: int
    machine_rank: int

    def rank_of(self, machine_rank: int, local_rank: int) -> int:
        """Return the rank with a local rank on a machine, modulo the machines."""
        return machine_rank % self.machine_size * self.local_size + local_rank


def check_layout(world_size: int, local_size: int, self_rank: int) -> Layout:
    """Return the layout as seen by ``self_rank``.

    Args:
        world_size: Number of ranks.
        local_size: Number of ranks of each machine.
        self_rank: Rank whose position to return.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: ``world_size`` is not a multiple of ``local_size``, or
            ``self_rank`` is not in ``0 .. world_size-1``.
    """
    world_size = check_integer(world_size, "world_size", minimum=1)
    local_size = check_integer(local_size, "local_size", minimum=1)
    rank = check_rank(self_rank, world_size, "self_rank")
    if world_size % local_size:
        raise ValueError(
            f"world_size must be a multiple of local_size, got "
            f"{count(world_size, 'rank')} on machines of {local_size}; all machines "
            "need the same number of ranks"
        )
    return Layout(
        local_size=local_size,
        local_rank=rank % local_size,
        machine_size=world_size // local_size,
        machine_rank=rank // local_size,
    )
