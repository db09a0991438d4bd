"""The base of algorithms whose ranks end together, because none waits in a step."""

from __future__ import annotations

import abc

from bluecomm.optim.algorithm import Algorithm


class BackgroundAlgorithm(Algorithm, abc.ABC):
    """Communicates at each rank's own pace, until all ranks want to end.

    A rank that ended alone would be missing in the rounds of the others.
    """

    depends_on_speed = True
    ends_with_others = True
    _is_on = True

    @abc.abstractmethod
    def end_together(self) -> None:
        """Take part in rounds until all ranks want to end.

        Called only while the algorithm is on. Afterwards it is off, also if this
        raises.

        Raises:
            FloatingPointError: Values were not finite. Raised only after all ranks have
                ended: a rank that left at once would be missing in later rounds.
            BluecommError: A rank is lost, or the deadline has passed.
        """

    def joins_in_engine(self) -> bool:
        return self.context.comm.size == 1

    def obstacle_to_join(self) -> str:
        return (
            "waits for no other rank, so a rank that runs out of data just stops; call "
            "optimizer.abort() where all ranks have to meet, which takes part in "
            "rounds until all have called it"
        )

    def abort(self) -> None:
        if self._is_on:
            try:
                self.end_together()
            finally:
                self._is_on = False

    def resume(self) -> None:
        self._is_on = True

    def drain(self) -> None:
        self.abort()

    def finalize(self) -> None:
        self.abort()
