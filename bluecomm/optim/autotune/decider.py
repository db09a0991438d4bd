"""The rank that decides for all: runs the search, and keeps its result in a file."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from bluecomm.optim.autotune.plot import plot
from bluecomm.optim.autotune.search import Interval, RoundTime, Search
from bluecomm.optim.autotune.space import Setting, Space, in_words
from bluecomm.optim.autotune.tuned_file import TunedFile
from bluecomm.optim.autotune.turns import Turns

_log = logging.getLogger("bluecomm")

# How long a search waits before it asks again whether it is its turn.
_WAIT_S, _MOST_ROUNDS = 1.0, 100


class Decider:
    """Decides for all ranks. A failure here ends the search, not the training.

    Args:
        name: Name of the optimizer.
        space: The settings.
        search: The search; ``None`` if ``known`` is to be used without one.
        known: The setting that a file has for this optimizer.
        file: The file that keeps the result, if there is one.
        facts: The facts on which a result depends, for the file.
        turns: The turns of all searches of this world.
        picture: Path of the plot of all trials, if one is wanted.
    """

    def __init__(
        self,
        name: str,
        space: Space,
        search: Search | None,
        *,
        known: Setting | None = None,
        file: TunedFile | None = None,
        facts: Mapping[str, str],
        turns: Turns,
        picture: Path | None = None,
    ) -> None:
        self._name = name
        self._space = space
        self._search = search
        self._known = known
        self._file = file
        self._facts = facts
        self._turns = turns
        self._picture = picture

    def report(self, rounds: Sequence[RoundTime]) -> Interval:
        """Take the rounds since the last decision; return the next one."""
        if self._search is None:
            assert self._known is not None
            _log.info("%s: autotune uses %s", self._name, in_words(self._known))
            return Interval(self._known, 0)
        if not self._turns.take(self):
            # Two searches at a time would measure each other's changes.
            typical_s = statistics.median(one.seconds for one in rounds)
            count = max(1, min(_MOST_ROUNDS, round(_WAIT_S / max(typical_s, 1e-9))))
            return Interval(self._space.default, count)
        try:
            decision = self._search.report(rounds)
        except Exception:
            _log.exception(
                "%s: autotune failed, so the default is used: %s",
                self._name,
                in_words(self._space.default),
            )
            self._turns.give_back()
            return Interval(self._space.default, 0)
        if not decision.rounds:
            self._turns.give_back()
            self._end(self._search, decision.setting)
        return decision

    def _end(self, search: Search, kept: Setting) -> None:
        """Log the result, and write it to the files."""
        if search.gain:
            result = (
                f"keeps {in_words(kept)}, {search.gain:.0%} faster than the default"
            )
        else:
            result = f"keeps the default: {in_words(kept)}"
        _log.warning(
            "%s: after %d trials, autotune %s", self._name, len(search.trials), result
        )
        try:
            if self._file is not None:
                self._file.keep(self._name, self._facts, kept, search)
            if self._picture is not None:
                plot(search.trials, self._space, kept, self._picture, self._name)
        except Exception as error:
            _log.warning("%s: autotune cannot write its result: %s", self._name, error)
