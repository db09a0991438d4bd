"""Names for the calls that the program has not named."""

from __future__ import annotations

import itertools

# Operations without a name are numbered by call order per kind, modulo this number, so
# that the tables of names stay small.
_UNNAMED_CALLS = 4096
# Part of the names of these operations, and of no others.
UNNAMED = ".noname."


class CallNames:
    """Numbers the calls of one communicator that have no name, by kind.

    Args:
        rounds: Rounds of ``join`` that have ended before.
    """

    def __init__(self, rounds: int) -> None:
        self._counters: dict[str, itertools.count[int]] = {}
        self._rounds = rounds

    def next(self, kind: str, rounds: int) -> str:
        """Return the name of the next call of a kind.

        Args:
            kind: The engine's name of the operation.
            rounds: Rounds of ``join`` that have ended by now.
        """
        if self._rounds != rounds:
            # Ranks that had joined have not counted the calls of the others.
            self._rounds = rounds
            self._counters.clear()
        counter = self._counters.get(kind)
        if counter is None:
            counter = self._counters.setdefault(kind, itertools.count())
        return f"{kind}{UNNAMED}{next(counter) % _UNNAMED_CALLS}"
