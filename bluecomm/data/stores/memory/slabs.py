"""The values in the shared file: keys, slabs, and pins.

The caller holds the lock of the table: shared to look up, exclusive to change. A
process may be killed between any two of its stores to the shared words, and leaves
nothing that a later call would misread:

- A key's word is stored last, when its value is complete, and alone.
- A slab's bytes in use only grow. Bytes of a value that was never completed are lost
  until the slab is emptied.
- Emptying is marked in the slab first, and repeated by the next process that
  changes the table. It forgets the keys of the slab, and then its bytes.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable

import numpy as np

from bluecomm.data.stores.flat_reader import ALIGNMENT
from bluecomm.data.stores.memory.layout import (
    EMPTYING,
    FREE,
    PAGE,
    ROWS,
    SLABS,
    USED,
    CacheLayout,
    slab_word,
)

_STATE, _CLASS, _USED_NBYTES, _FILLING = range(4)
# Classes differ by this factor in seconds per byte.
_CLASS_FACTOR = 4.0
_MIDDLE_CLASS = 64
_LAST_CLASS = 2 * _MIDDLE_CLASS


def class_of(cost_s: float, nbytes: int) -> int:
    """Return the class of a value: the logarithm of its seconds per byte."""
    if cost_s <= 0:
        return 0
    power = math.floor(math.log(cost_s / nbytes, _CLASS_FACTOR))
    return max(0, min(_LAST_CLASS, power + _MIDDLE_CLASS))


class SlabTable:
    """The words of the shared file that say where values are.

    Args:
        memory: The file from its beginning to its values, shared.
        layout: Its layout.
        is_alive: Returns whether the process of a row still runs.
    """

    def __init__(
        self, memory: mmap.mmap, layout: CacheLayout, is_alive: Callable[[int], bool]
    ) -> None:
        self._layout = layout
        self._is_alive = is_alive
        words = np.frombuffer(memory, np.uint64, layout.keys_word + layout.keys)
        pins = words[layout.pins_word : layout.keys_word]
        self._pins = pins.reshape(ROWS, SLABS)
        self._keys = words[layout.keys_word :]
        # Single words are read and stored faster than with NumPy.
        self._words = memoryview(memory).cast("Q")
        self._first_key = layout.keys_word
        self._first_pin = -1
        self.row = -1

    def find(self, key: int) -> int | None:
        """Return where the value of a key begins, in bytes from the first slab."""
        word = self._words[self._first_key + key]
        return (word - 1) * ALIGNMENT if word else None

    def slab_at(self, location: int) -> int:
        """Return the slab of a location."""
        return location // self._layout.slab_nbytes

    def take_row(self, row: int) -> None:
        """Use a row, which nobody else uses, for the pins of this process."""
        self._pins[row] = 0
        self.row = row
        self._first_pin = self._layout.pins_word + row * SLABS

    def pin(self, slab: int, change: int) -> None:
        """Change the number of values of a slab that this process uses."""
        self._words[self._first_pin + slab] += change

    def reserve(self, nbytes: int, value_class: int, *, paged: bool) -> int | None:
        """Return the location for a new value, and pin its slab.

        Args:
            nbytes: Its bytes, a multiple of ``ALIGNMENT``, at most a slab.
            value_class: See ``class_of``. A slab holds values of one class. If all
                are in use, one of the lowest class below this one is emptied.
            paged: Whether the value begins at a page, which no other value may share.

        Returns:
            The location, or None if no slab of a lower class can be emptied.
        """
        self.finish_emptying()
        step = PAGE if paged else ALIGNMENT
        slab = self._slab_with_room(nbytes, value_class, step)
        if slab is None:
            slab = self._new_slab(value_class)
        if slab is None:
            return None
        begin = self._begin(slab, step)
        self.pin(slab, 1)
        used = begin + nbytes if not paged else -(-(begin + nbytes) // PAGE) * PAGE
        self._words[slab_word(slab) + _USED_NBYTES] = used
        return slab * self._layout.slab_nbytes + begin

    def publish(self, key: int, location: int) -> None:
        """Let others find the value of a key, unless there is one already."""
        word = self._first_key + key
        if not self._words[word]:
            self._words[word] = location // ALIGNMENT + 1

    def finish_emptying(self) -> None:
        """Repeat what a killed process may have left half done."""
        for slab in range(SLABS):
            if self._words[slab_word(slab) + _STATE] == EMPTYING:
                self._empty(slab)

    def _begin(self, slab: int, step: int) -> int:
        used = self._words[slab_word(slab) + _USED_NBYTES]
        return -(-used // step) * step

    def _slab_with_room(self, nbytes: int, value_class: int, step: int) -> int | None:
        for slab in range(SLABS):
            word = slab_word(slab)
            fits = self._begin(slab, step) + nbytes <= self._layout.slab_nbytes
            is_used = self._words[word + _STATE] == USED
            if is_used and self._words[word + _CLASS] == value_class and fits:
                return slab
        return None

    def _new_slab(self, value_class: int) -> int | None:
        """Return an empty slab of a class, emptying one if all are in use."""
        rows = [list(self._words[slab_word(i) :][:4]) for i in range(SLABS)]
        free = [i for i, row in enumerate(rows) if row[_STATE] == FREE]
        lower = [
            i
            for i, row in enumerate(rows)
            if row[_STATE] == USED and row[_CLASS] < value_class
        ]
        # The lowest class first, and of it the slab that was begun first.
        lower.sort(key=lambda i: (rows[i][_CLASS], rows[i][_FILLING]))
        slab = next((i for i in free + lower if not self._is_pinned(i)), None)
        if slab is None:
            return None
        word = slab_word(slab)
        if rows[slab][_STATE] == USED:
            self._words[word + _STATE] = EMPTYING
            self._empty(slab)
        self._words[word + _CLASS] = value_class
        self._words[word + _FILLING] = max(row[_FILLING] for row in rows) + 1
        self._words[word + _STATE] = USED
        return slab

    def _empty(self, slab: int) -> None:
        size = self._layout.slab_nbytes // ALIGNMENT
        first = slab * size + 1
        inside = (self._keys >= first) & (self._keys < first + size)
        self._keys[inside] = 0
        word = slab_word(slab)
        self._words[word + _USED_NBYTES] = 0
        self._words[word + _STATE] = FREE

    def _is_pinned(self, slab: int) -> bool:
        rows = np.flatnonzero(self._pins[:, slab])
        return any(int(row) == self.row or self._is_alive(int(row)) for row in rows)

    def nbytes_used(self) -> int:
        """Return the bytes of all slabs that are in use."""
        return sum(self._words[slab_word(slab) + _USED_NBYTES] for slab in range(SLABS))
