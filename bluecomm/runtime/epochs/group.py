"""The group of one epoch: the members that make the collectives in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bluecomm.runtime.failure import Reason

if TYPE_CHECKING:
    from bluecomm._native import Parameters
    from bluecomm.runtime.world import World


class Group(Protocol):
    """The parts of a communicator that the epochs use."""

    world: World
    rank: int
    ranks: tuple[int, ...]
    group_id: int
    is_world: bool

    def refuse(
        self, kind: str, name: str, reason: Reason, parameters: Parameters | None
    ) -> None:
        """Count a call that this member does not make, and tell the others."""

    def free(self) -> None:
        """Forget the group."""
