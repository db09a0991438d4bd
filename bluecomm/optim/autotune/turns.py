"""Lets the searches of a process run one after another."""

from __future__ import annotations

import weakref


class Turns:
    """The turns of the searches of one world, of which one may run at a time.

    A search that has been dropped with its optimizer holds up no other.
    """

    def __init__(self) -> None:
        self._holder: weakref.ref[object] | None = None

    def take(self, search: object) -> bool:
        """Return whether it is the turn of ``search``, which keeps it then."""
        holder = None if self._holder is None else self._holder()
        if holder is None:
            self._holder = weakref.ref(search)
        return holder is None or holder is search

    def give_back(self) -> None:
        """Let the next search run."""
        self._holder = None
