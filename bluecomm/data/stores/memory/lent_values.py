"""Values of the shared file that a process uses in place.

The process maps the values privately: a page that it writes to becomes its own copy
(copy on write), so the file never changes. When nothing refers to the value any more,
such copies are dropped, and the next use sees the value of the file again.
"""

from __future__ import annotations

import collections
import ctypes
import mmap
import os
import weakref

import numpy as np

from bluecomm.data.stores.memory.layout import PAGE, CacheLayout

_MAP_NORESERVE = 0x4000
# Bits of an entry of /proc/self/pagemap (the kernel's admin-guide/mm/pagemap): the
# page is in memory, is swapped out, and belongs to a file or is shared.
_PRESENT = np.uint64(1 << 63)
_SWAPPED = np.uint64(1 << 62)
_OF_FILE = np.uint64(1 << 61)


class _Lent(weakref.ref[memoryview]):
    """A value that is in use, and where it is."""

    __slots__ = ("location", "nbytes")
    location: int
    nbytes: int


class LentValues:
    """The private mapping of the values in this process, and what is in use of it.

    Only ``_on_release`` runs on any thread, at any time; the caller excludes the others
    from each other.

    Args:
        fd: The shared file.
        layout: Its layout.

    Raises:
        OSError: It cannot be mapped.
    """

    def __init__(self, fd: int, layout: CacheLayout) -> None:
        self._memory = mmap.mmap(
            fd,
            layout.values_nbytes,
            flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
            offset=layout.values_byte,
        )
        self._view = memoryview(self._memory)
        first = ctypes.c_char.from_buffer(self._memory)
        self._address = ctypes.addressof(first)
        self._pid = os.getpid()
        self._lent: dict[int, _Lent] = {}
        self._released: collections.deque[_Lent] = collections.deque()
        try:
            self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._pagemap = -1

    def peek(self, location: int, nbytes: int) -> memoryview:
        """Return bytes to read while their slab is pinned."""
        return self._view[location : location + nbytes]

    def lend(self, location: int, nbytes: int) -> memoryview | None:
        """Return a value to use in place, or None if it is in use already.

        The value may be written to. It is among ``take_released`` when nothing refers
        to the memoryview any more.
        """
        if location in self._lent or self._pagemap < 0:
            return None
        value = self._view[location : location + nbytes]
        lent = _Lent(value, self._on_release)
        lent.location = location
        lent.nbytes = nbytes
        self._lent[location] = lent
        return value

    def take_released(self) -> list[int]:
        """Return the locations of values that are no longer in use, once each."""
        locations = []
        while self._released:
            lent = self._released.popleft()
            self._restore(lent.location, lent.nbytes)
            del self._lent[lent.location]
            locations.append(lent.location)
        return locations

    def in_use(self) -> list[int]:
        """Return the locations of the values that are in use."""
        return list(self._lent)

    def _on_release(self, lent: weakref.ref[memoryview]) -> None:
        # A fork has its parent's references, but a mapping of its own.
        if os.getpid() == self._pid and isinstance(lent, _Lent):
            self._released.append(lent)

    def _restore(self, location: int, nbytes: int) -> None:
        """Drop this process's copies of the pages of a value."""
        begin = location // PAGE * PAGE
        length = -(-(location + nbytes) // PAGE) * PAGE - begin
        where = (self._address + begin) // PAGE * 8
        entries = np.frombuffer(
            os.pread(self._pagemap, length // PAGE * 8, where), np.uint64
        )
        is_copy = (entries & (_PRESENT | _SWAPPED)).astype(bool)
        is_copy &= (entries & _OF_FILE) == 0
        if is_copy.any() or len(entries) < length // PAGE:
            self._memory.madvise(mmap.MADV_DONTNEED, begin, length)

    def close(self) -> None:
        """Forget the mapping, which ends with the last value in use."""
        if self._pagemap >= 0:
            os.close(self._pagemap)
            self._pagemap = -1
        self._released.clear()
