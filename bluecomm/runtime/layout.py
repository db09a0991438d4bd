"""The layout of a set of ranks on machines."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class MachineLayout:
    """The machine of each member of a set of ranks.

    Members are numbered 0 .. size - 1, and ``machine_of[i]`` is the machine of member
    ``i``. Machines are numbered in the order of their first members. The members of a
    machine need not be consecutive.
    """

    machine_of: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.machine_of)

    @property
    def machine_size(self) -> int:
        """Number of machines."""
        return max(self.machine_of, default=-1) + 1

    def members(self, machine: int) -> list[int]:
        """Return the members of a machine in ascending order."""
        return [i for i, where in enumerate(self.machine_of) if where == machine]

    def local_rank(self, member: int) -> int:
        """Return the position of a member on its machine."""
        return self.machine_of[:member].count(self.machine_of[member])

    def local_size(self, member: int) -> int:
        """Return the number of members on a member's machine."""
        return self.machine_of.count(self.machine_of[member])

    @functools.cached_property
    def is_homogeneous(self) -> bool:
        """Whether each machine has the same number of members."""
        counts = {self.machine_of.count(m) for m in range(self.machine_size)}
        return len(counts) == 1

    def restrict(self, members: Sequence[int]) -> MachineLayout:
        """Return the layout of some members, numbered in the given order."""
        return layout_of([str(self.machine_of[member]) for member in members])


def layout_of(
    machines: Sequence[str], ranks_per_machine: int | None = None
) -> MachineLayout:
    """Return the layout of members on the given machines.

    Args:
        machines: Identity of each member's machine.
        ranks_per_machine: Number of members of each simulated machine. Each machine is
            cut into simulated machines, of which the last may have fewer members.
            Default: machines are not cut.

    Returns:
        Layout whose machines are numbered in the order of their first members.
    """
    seen: dict[str, int] = {}
    numbers: dict[tuple[str, int], int] = {}
    machine_of = []
    for machine in machines:
        position = seen.get(machine, 0)
        seen[machine] = position + 1
        block = position // ranks_per_machine if ranks_per_machine else 0
        machine_of.append(numbers.setdefault((machine, block), len(numbers)))
    return MachineLayout(tuple(machine_of))
