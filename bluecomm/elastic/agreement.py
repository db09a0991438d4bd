"""The agreement on the check of a state from which lost ranks are left out."""

from __future__ import annotations

from bluecomm.errors import CommunicationTimeout
from bluecomm.optim.regrouping import Regrouping
from bluecomm.runtime import current_communicator

_STATE = "elastic.state"


class Agreement:
    """Lets all ranks leave out lost ones at the same check of a state.

    It works like the agreement of an optimizer on the first round of a new graph, with
    checks instead of rounds. It costs nothing until a rank is lost, and does not depend
    on other communication of the program. The first check that no rank has begun is
    the first without the lost rank, so ranks wait only for the agreement itself.
    """

    def __init__(self) -> None:
        comm = current_communicator()
        self._world = comm.world
        # All ranks make their states in the same order, so the numbers are equal.
        self._regrouping = Regrouping(comm, comm.name_for(_STATE, None), lead=1)

    @property
    def is_current(self) -> bool:
        """Whether the world for which it was made is the current one."""
        return self._world is current_communicator().world

    def begin(self, number: int) -> tuple[int, ...] | None:
        """Begin a check.

        Args:
            number: Number of the check, larger than that of the check before.

        Returns:
            The ranks that are left, if this is their first check without the others.

        Raises:
            CommunicationTimeout: The other ranks have not agreed in time.
        """
        try:
            return self._regrouping.begin_round(number)
        except CommunicationTimeout as error:
            raise CommunicationTimeout.describe(
                "the ranks that are left have not agreed on the check from which they "
                "go on",
                operation="check_host_updates",
                rank=self._world.rank,
                remedy="Another rank may have stopped; look at the ranks' output",
            ) from error
